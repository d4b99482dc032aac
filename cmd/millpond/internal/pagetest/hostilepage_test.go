package pagetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/cmd/millpond/internal/shop"
	"github.com/millpond-go/millpond/internal/testing/rig"
)

// hostile are texts that try to run, to ask another host, or to look like something else. %d makes
// each of them different.
var hostile = []string{
	`<script>window.hacked=%d</script>`,
	`"><img src=x onerror="window.hacked=%d">`,
	`' onfocus='window.hacked=%d' autofocus='`,
	`javascript:window.hacked=%d//`,
	`</title></textarea></select></pre><svg onload=window.hacked=%d>`,
	`<iframe srcdoc="<script>parent.hacked=%d</script>"></iframe>`,
	`<style>@import "http://192.0.2.1/%d";</style><link rel=prefetch href=//192.0.2.1>`,
	`<meta http-equiv=refresh content="0;url=http://192.0.2.1/%d"><base href=//192.0.2.1>`,
	`<form action=http://192.0.2.1/%d><button autofocus>Replay`,
	`{{template "foot"}}{{.Form}} ${window.hacked=%d} <!-- --!>`,
	"x\n\nevent: now\ndata: <img src=x onerror=window.hacked=%d>\n\n",
	"\x1b]0;%d\x07\x1b[2J\x9b31m\x00\b\r",
	"a\u202e%d\u2066b\u2028c\u200b\u00ad\ufeff\U000e0041",
	"\xff\xfe\xc0\xaf<script>window.hacked=%d</script>",
	"data-reload &lt;b&gt; '-hacked=%d-' \u3164 line\r\nSet-Cookie: a=b",
	"data:text/html,<script>parent.hacked=%d</script>" + strings.Repeat("A", 300),
}

// clean requires that no text of the page was taken for anything else.
func (b *tab) clean() {
	b.t.Helper()
	assert.Empty(b.t, eval[string](b, `(() => {
		const wrong = [];
		if ("hacked" in window) wrong.push("hacked " + window.hacked);
		if (document.scripts.length !== 2) wrong.push("scripts");
		const strange = "img, iframe, object, embed, base, style, [style], meta[http-equiv], audio," +
			" video, a:not([href]), a[href^='javascript:'], a[target]," +
			" link:not([rel=icon], [rel=stylesheet])";
		for (const e of document.querySelectorAll(strange)) wrong.push(e.outerHTML.slice(0, 200));
		for (const e of document.querySelectorAll("*")) {
			for (const a of e.attributes) if (/^on/i.test(a.name)) wrong.push(a.name);
		}
		if (/[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\u3164\ufeff]/.test(
			document.body.innerText)) wrong.push("a character that cannot be seen");
		return wrong.join("; ");
	})()`), b.path())
}

// Given letters, headers, errors and names of queues that are made to attack, then nothing of them
// is run, asked for or taken for a part of the page, and the page stays quick.
func hostileTexts(t *testing.T, y *yard) {
	letters := 3_000
	if long {
		letters = 100_000
	}
	h := y.newHouse(t)
	queue := fmt.Sprintf(hostile[1], 7) // nothing but a name
	for _, name := range []string{queue, "a\u202e<script>hacked=1</script>"} {
		h.Serve(rig.Config{Queue: name, Policy: backoff.List{time.Hour}})
	}
	h.fillHostile(queue+".dlq", queue, letters)
	h.fillHostile(queue+".wait.1h", queue, 3*len(hostile))
	h.act()
	b := h.tab()
	b.tolerate("status of 404")
	m := mouse{b}
	b.visit("/")
	b.see("In progress")
	b.clean()
	b.visit("/dead")
	m.press("Look at the letters")
	b.see("of " + thousands(letters) + " letters")
	b.clean()
	b.shot("dead")
	began := time.Now()
	b.visit("/dead")
	require.Less(t, time.Since(began), 5*time.Second, "the page loads")
	began = time.Now()
	eval[int](b, "1")
	require.Less(t, time.Since(began), time.Second, "the page answers")
	require.Contains(t, b.text(), "⟨U+202E⟩")
	letterLinks := eval[[]string](b, `[...document.querySelectorAll(
		"a[href*='/letter?'], a[href*='group=']")].slice(0, 40).map((a) => a.getAttribute("href"))`)
	require.NotEmpty(t, letterLinks)
	for i, link := range letterLinks {
		b.visit(link)
		b.clean()
		if i%8 == 0 {
			b.visit(link + "&as=hex")
			b.clean()
		}
	}
	b.visit("/letter?" + strings.SplitN(lastOf(letterLinks), "?", 2)[1])
	b.shot("letter")
	m.press("Edit …")
	b.see("The original is kept")
	b.clean()
	for _, path := range []string{
		"/waiting", "/stranded", "/brakes", "/verify", "/doctor", "/actions",
		"/dead?error=%3Cscript%3Ehacked=1%3C/script%3E&reason=%22%3E%3Cimg%20src=x%20onerror=hacked=1%3E",
		"/dead?payload=hacked&header=a%0d%0aSet-Cookie:x=%3Cscript%3E",
		"/%3Cscript%3Ehacked=1%3C/script%3E", "/letter?dead=%3Cscript%3E&id=%00&position=1",
		"/waiting?queue=%3Cscript%3Ehacked=1%3C/script%3E", "//192.0.2.1/%2e%2e",
	} {
		b.tolerate("status of 400")
		b.visit(path)
		b.clean()
	}
	b.visit("/waiting")
	b.visit("/waiting?queue=" + eval[string](b, `encodeURIComponent(
		[...document.querySelectorAll("th a")].find((a) => a.innerText.includes("onerror")).innerText)`))
	m.press("Look at the messages")
	b.see("Look again", "Last error")
	b.clean()
	b.shot("waiting")
	b.visit("/verify")
	m.press("Verify")
	b.see("verified")
	b.clean()
}

func lastOf(all []string) string { return all[len(all)-1] }

// thousands writes a number as the page does.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return thousands(n/1000) + fmt.Sprintf("\u202f%03d", n%1000)
}

// fillHostile publishes n hostile letters of a queue.
func (h *house) fillHostile(to, queue string, n int) {
	h.t.Helper()
	var letters []amqp.Publishing
	for i := range n {
		text := fmt.Sprintf(hostile[i%len(hostile)], i)
		other := fmt.Sprintf(hostile[(i+i/len(hostile))%len(hostile)], i)
		short := text[:min(len(text), 100)]
		m := shop.Letter(queue, short, other, time.Now(), []byte(other), amqp.Table{
			short: other, "millpond-handler": text,
		})
		m.Type, m.AppId, m.ContentType = short, short, short
		letters = append(letters, m)
	}
	h.Post(to, letters...)
	rig.AwaitDepth(h.t, h.URL, to, n)
}
