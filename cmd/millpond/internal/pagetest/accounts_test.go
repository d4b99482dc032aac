package pagetest

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/internal/testing/rig"
)

// Given an account that may read and an account that may act, then each can do that and no more.
func roles(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.crowd(5)
	secret := func(name, text string) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o600))
		return file
	}
	const reader, actor = "reader-0123456789abcdef", "actor-0123456789abcdef"
	h.open("--allow-actions", "--state", h.state,
		"--read-token-file", secret("read", reader), "--token-file", secret("act", actor))
	b := h.tab()
	b.tolerate("status of 40")
	m := mouse{b}
	login := func(token string) {
		b.visit("/")
		m.fill("Token or password", token)
		m.press("Log in")
	}
	// act posts the fields of an action's form, with the token of this page.
	act := func() int64 {
		return eval[int64](b, `fetch("/action/rehearse", {method: "POST", body: new URLSearchParams({
			form: document.querySelector("input[name=form]").value, kind: "discard", queue: "orders",
			all: "1"})}).then((r) => r.status)`)
	}

	login("reader-wrong")
	b.see("That is not right")
	login(reader)
	b.see("You may read", "In progress")
	b.visit("/dead?queue=orders")
	m.press("Look at the letters")
	b.see("1 cause of 5 letters")
	require.NotContains(t, b.text(), "Act on these messages")
	b.shot("reader")
	require.EqualValues(t, http.StatusForbidden, act())
	m.press("Log out")
	b.see("Log in to millpond")

	login(actor)
	b.see("may act", "In progress")
	b.visit("/dead?queue=orders")
	m.press("Act on these messages")
	b.see("Replay dead letters")
	require.EqualValues(t, http.StatusOK, act())
	rig.AwaitDepth(t, h.url, "orders.dlq", 5)
	require.NotContains(t, eval[string](b, "document.cookie"), "actor", "scripts cannot read it")
}

// Given masks, then their values are on no page, in no file and in no answer.
func masked(t *testing.T, y *yard) {
	h := y.newHouse(t)
	h.crowd(1)
	h.letter("orders", "order-1", "card refused", time.Now(),
		[]byte(`{"order":7,"card":{"number":"4111-1111"},"users":[{"password":"hunter2"}]}`))
	h.open("--mask", "$.card.number", "--mask", "$..password")
	b := h.tab()
	m := mouse{b}
	b.visit("/dead?queue=orders")
	m.press("Look at the letters")
	b.see("2 causes of 2 letters")
	m.press("order-1")
	b.see("values are masked", `"order": 7`, `"number": "(masked)"`, `"password": "(masked)"`)
	b.shot("masked")
	letter := b.path()
	download := eval[string](b, `(() => {
		const form = document.querySelector("form[action*='/letter/download']");
		return fetch(form.action, {method: "POST", body: new URLSearchParams(new FormData(form))})
			.then((r) => r.text());
	})()`)
	require.Contains(t, download, "(masked)")
	all := download
	for _, path := range []string{letter, letter + "&as=hex", "/dead?queue=orders", "/"} {
		b.visit(path)
		all += eval[string](b, "document.documentElement.outerHTML")
	}
	b.visit("/dead?queue=orders&payload=4111")
	m.press("Look at the letters")
	b.see("No dead letters match")
	for _, value := range []string{"4111-1111", "hunter2", "34 31 31 31"} {
		require.NotContains(t, all, value)
	}
}
