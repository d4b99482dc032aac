package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/millpond-go/millpond/backoff"
	"github.com/millpond-go/millpond/internal/testing/rig"
	"github.com/millpond-go/millpond/internal/testing/testbroker"
	"github.com/millpond-go/millpond/middleware"
	"github.com/millpond-go/millpond/topology"
	"github.com/millpond-go/millpond/topology/management"
	"github.com/millpond-go/millpond/topology/operate"
)

// provisioned are strategies whose plans the common node has imported, each in its vhost.
var provisioned = map[string]topology.Strategy{
	"perqueue": topology.PerQueue{
		Dead: topology.DeadLetters{Arguments: amqp.Table{"x-max-length": int64(1000)}},
	},
	"levels": topology.Levels{},
	// Only this one needs no right to the default exchange, which leads to every queue.
	"target": topology.Shared{Dead: topology.DeadLetters{Target: func(string) topology.Route {
		return topology.Route{Exchange: "graves", RoutingKey: "orders"}
	}}},
	"return": topology.Shared{Via: []string{"amq.topic"}},
}

var provisionedPolicy = backoff.List{200 * time.Millisecond}

// importDefinitions makes the vhosts of the provisioned strategies, their users with the exported
// permissions, and in one vhost of each strategy its exported definitions.
func importDefinitions(t testing.TB, node *testbroker.Node) {
	t.Helper()
	for name, strategy := range provisioned {
		plan := rig.PlanOf(t, strategy, "orders", provisionedPolicy...)
		for vhost, p := range map[string]topology.Permissions{
			"provisioned-" + name: plan.Permissions(false), "declaring-" + name: plan.Permissions(true),
		} {
			node.Grant(t, testbroker.Everything(vhost, "guest"), testbroker.Grant{
				VHost: vhost, User: "user-" + vhost, Configure: p.Configure, Write: p.Write, Read: p.Read,
			})
		}
		main := topology.Queue{Name: "orders", Arguments: amqp.Table{"x-queue-type": "classic"}}
		data, err := plan.Definitions("provisioned-"+name, main)
		require.NoError(t, err)
		require.True(t, json.Valid(data))
		node.Import(t, data)
	}
}

// Given an empty vhost with the exported definitions, then a user with exactly the exported
// permissions retries and dead-letters there without declaring anything. Another user, with the
// patterns for declaring, declares (T4, T6). Messages end in every possible way.
func TestDefinitionsAndPermissionsSuffice(t *testing.T) {
	t.Parallel()
	node := commonNode(t)
	rig.Each(t, map[string][]topology.Option{
		"provisioned": {topology.WithPreProvisioned()}, "declaring": nil,
	}, func(t *testing.T, options []topology.Option) {
		rig.Each(t, provisioned, func(t *testing.T, strategy topology.Strategy) {
			words := strings.Split(t.Name(), "/")
			vhost, name := words[1]+"-"+words[2], words[2]
			admin := node.URL() + vhost
			if name == "target" {
				digGraves(t, admin)
			}
			c, handled := rig.EveryWay(rig.Config{
				URL: node.URLOf("user-"+vhost) + vhost, AdminURL: admin,
				Queue: "orders", Strategy: strategy, Policy: provisionedPolicy, ClientOptions: options,
			})
			r := rig.Start(t, c)
			rig.RequireEveryWay(t, r, handled, admin, len(options) == 0)
			r.Stop()
			requireRefused(t, r.URL, admin, name)
		})
	})
}

// digGraves declares an exchange for dead letters and its queue.
func digGraves(t testing.TB, url string) {
	t.Helper()
	ch := testbroker.Channel(t, url)
	require.NoError(t, ch.ExchangeDeclare("graves", "direct", true, false, false, false, nil))
	rig.DeclareQueue(t, url, "orders.dlq", nil)
	require.NoError(t, ch.QueueBind("orders.dlq", "orders", "graves", false, nil))
}

// requireRefused asserts that a user with the exported permissions is refused all that is not in
// the plan.
func requireRefused(t testing.TB, url, admin, name string) {
	t.Helper()
	const payroll = "orders.payroll"
	rig.DeclareQueue(t, admin, payroll, nil)
	publishTo := func(exchange, key string) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error {
			closed := ch.NotifyClose(make(chan *amqp.Error, 1))
			if err := ch.Confirm(false); err != nil {
				return err
			}
			confirm, err := ch.PublishWithDeferredConfirm(exchange, key, false, false, amqp.Publishing{})
			if err != nil {
				return err
			}
			if confirm.Wait() {
				return nil
			}
			return <-closed
		}
	}
	read := func(queue string) func(ch *amqp.Channel) error {
		return func(ch *amqp.Channel) error { _, _, err := ch.Get(queue, true); return err }
	}
	cases := map[string]func(ch *amqp.Channel) error{
		"publish to amq.topic":  publishTo("amq.topic", "orders"),
		"publish to amq.fanout": publishTo("amq.fanout", ""),
		"read another queue":    read(payroll),
		"read the dead letters": read("orders.dlq"),
		"declare another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare("orders.x", true, false, false, false, nil)
			return err
		},
		"delete another queue": func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(payroll, false, false, false)
			return err
		},
		"declare another exchange": func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare("x", "fanout", true, false, false, false, nil)
		},
		"bind a queue to amq.topic": func(ch *amqp.Channel) error {
			return ch.QueueBind("orders", "#", "amq.topic", false, nil)
		},
	}
	if name == "return" { // A binding to an exchange needs the right to write to it.
		delete(cases, "publish to amq.topic")
	}
	if name == "target" {
		cases["publish to the default exchange"] = publishTo("", payroll)
	}
	for what, try := range cases {
		var refused *amqp.Error
		require.ErrorAs(t, try(testbroker.Channel(t, url)), &refused, "%s: %s", name, what)
		require.Equal(t, amqp.AccessRefused, refused.Code, "%s: %s: %v", name, what, refused)
	}
}

// Given WithPreProvisioned and a missing plan, then Subscribe names each missing queue. When a
// queue vanishes later, then the message is held until the queue is back.
func TestPreProvisionedDeclaresNothing(t *testing.T) {
	t.Parallel()
	url, queue := testbroker.URL(t), testbroker.Queue(t)
	policy := sourcePolicy
	provisioned := topology.WithPreProvisioned()
	_, sub := rig.OpenSubscriber(t, url, topology.PerQueue{}, policy, provisioned)
	_, err := sub.Subscribe(t.Context(), queue)
	require.ErrorContains(t, err, "WithPreProvisioned declares nothing, and these do not exist")
	for _, name := range []string{queue, queue + ".wait.1s", queue + ".dlq"} {
		require.ErrorContains(t, err, `queue "`+name+`"`)
		require.Equal(t, -1, testbroker.Depth(t, url, name))
	}

	plan := rig.PlanFor(t, queue, topology.PerQueue{}, policy)
	for _, q := range append(plan.Queues, topology.Queue{Name: queue}) {
		rig.DeclareQueue(t, url, q.Name, q.Arguments)
	}
	wait := plan.Queues[0]
	attempts, ch := make(chan int, 10), testbroker.Channel(t, url)
	r := rig.Start(t, rig.Config{
		URL: url, Queue: queue, Policy: policy, ClientOptions: []topology.Option{provisioned},
		Handle: func(msg *message.Message) error {
			err := rig.FailFirst(msg)
			if err != nil {
				if _, err := ch.QueueDelete(wait.Name, false, false, false); err != nil {
					t.Error(err)
				}
			}
			attempts <- middleware.Attempt(msg.Context())
			return err
		},
	})
	r.Send("held")
	rig.AwaitAttempts(t, attempts, 1)
	r.AwaitLine("a queue, an exchange or a binding for retries is missing")
	require.Equal(t, -1, testbroker.Depth(t, url, wait.Name))
	rig.DeclareQueue(t, url, wait.Name, wait.Arguments)
	rig.AwaitAttempts(t, attempts, 2)
}

// Given messages that end in every way, and a broker that goes away and changes the password, then
// no log line of any level, no error and no header has a payload, a password or a stack.
func TestNothingSecretIsLoggedOrWritten(t *testing.T) {
	t.Parallel()
	const password, payload = "s3cr3t-password", "s3cr3t-payload"
	const away = "http://secretive:" + password + "@127.0.0.1:1/"
	node, queue := commonNode(t), testbroker.Queue(t)
	node.Grant(t, testbroker.Everything("/", "secretive"))
	node.Ctl(t, "eval", changePassword("secretive", password))
	proxy := testbroker.NewProxy(t, node.URL())
	secret := strings.Replace(proxy.URL(), "guest:guest", "secretive:"+password, 1)
	fail := func(kind string) error {
		panics := func(*message.Message) ([]*message.Message, error) {
			panic(errors.New("the shop is on fire"))
		}
		switch {
		case strings.Contains(kind, "panics"):
			_, err := panics(nil)
			return err
		case strings.Contains(kind, "is recovered"):
			_, err := wmiddleware.Recoverer(panics)(nil)
			return err
		}
		return rig.ErrFailed
	}
	begun, stopped := make(chan struct{}, 10), make(chan struct{})
	r := rig.Start(t, rig.Config{
		URL: secret, AdminURL: node.URL(), Queue: queue, Verbose: true,
		Configure: rig.Picky, Policy: rig.Quickly(1),
		ClientOptions: []topology.Option{
			topology.WithManagement(management.At(away)),
		},
		Handle: func(msg *message.Message) error {
			kind := msg.Metadata.Get("kind")
			switch {
			case kind == "lives through an outage":
				begun <- struct{}{}
				<-stopped
			case strings.HasSuffix(kind, "and waits"):
				return middleware.RetryAfter(fail(kind), time.Hour)
			}
			return fail(kind)
		},
	})
	send := func(kind string, headers amqp.Table) {
		msg := rig.Message(payload)
		msg.Headers, msg.CorrelationId = headers, kind
		r.Publish(msg)
	}
	for _, kind := range []string{
		"fails", "panics", "is recovered", "cannot be decoded",
		"fails and waits", "is recovered and waits",
	} {
		send(kind, amqp.Table{"kind": kind})
	}
	send("oversized", amqp.Table{"big": strings.Repeat("v", 130_000)})
	forge(t, r.URL, r.Queue, unreadable()["nested 33 deep"])

	var written []string
	keep := func(d amqp.Delivery) string {
		written = append(written, fmt.Sprintf("%s: %+v %q", d.CorrelationId, d.Headers, d.Type))
		return d.CorrelationId
	}
	dead := map[string]bool{}
	for range 6 {
		dead[keep(r.DeadLetter())] = true
	}
	require.Equal(t, map[string]bool{
		"fails": true, "panics": true, "is recovered": true, "cannot be decoded": true,
		"oversized": true, "": true,
	}, dead)

	// The broker goes away while a message is handled, and comes back.
	o := rig.OpenOperator(t, secret, operate.WithManagement(away))
	findings, err := o.Verify(t.Context(), r.Plan)
	errs := fmt.Sprint(findings, err)
	require.Contains(t, errs, "127.0.0.1:1")
	send("outage", amqp.Table{"kind": "lives through an outage"})
	<-begun
	cutOff(proxy)
	close(stopped)
	r.AwaitLine("Cannot reconnect")
	for _, url := range []string{
		secret, "amqp://secretive:" + password + "/x@host:1/", "http://secretive:" + password + "@host/",
	} {
		_, err := topology.Open(t.Context(), rig.ConnectionConfig(url), topology.PerQueue{},
			topology.WithBrokers(url))
		require.Error(t, err)
		errs += "\n" + err.Error()
	}
	proxy.Refuse(false)
	require.Equal(t, "outage", keep(rig.Take(t, node.URL(), queue+".dlq")))
	node.Ctl(t, "eval", changePassword("secretive", "another"))
	r.AwaitLine("username or password")
	r.Stop()
	for back := 0; back < 2; { // The messages that wait come back with the headers of the wait.
		if body := keep(rig.Take(t, node.URL(), queue)); body != "outage" { // whose ack may be lost
			require.Contains(t, body, "and waits")
			back++
		}
	}

	require.Contains(t, r.Logs.Text(), "the shop is on fire")
	for place, text := range map[string]string{
		"log": r.Logs.Text(), "errors": errs, "headers": strings.Join(written, "\n"),
	} {
		for _, secret := range []string{payload, password, "goroutine ", "runtime/debug", ".go:"} {
			for line := range strings.Lines(text) {
				require.NotContains(t, line, secret, place)
			}
		}
	}
	t.Logf("%d lines of log, %d messages", strings.Count(r.Logs.Text(), "\n"), len(written))
}

// issue returns a certificate with its key. It is signed by another, or is a CA.
func issue(name string, by *tls.Certificate, hosts ...string) *tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: hosts,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, any(key)
	if by != nil {
		parent, signer = by.Leaf, by.PrivateKey
	} else {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func inPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// trusting connects with a client certificate of one CA, and trusts the certificates of another.
func trusting(server, client *tls.Certificate) *tls.Config {
	cfg := &tls.Config{}
	if server != nil {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AddCert(server.Leaf)
	}
	if client != nil {
		cfg.Certificates = []tls.Certificate{*issue("shop", client)}
	}
	return cfg
}

// authorities are the CA of the common node, and another one.
var authorities = sync.OnceValue(func() (both [2]*tls.Certificate) {
	for i := range both {
		both[i] = issue(fmt.Sprint("CA ", i), nil)
	}
	return both
})

// listensOnTLS gives a node a TLS listener that demands client certificates.
func listensOnTLS() testbroker.NodeOption {
	trusted := authorities()[0]
	own := issue("broker", trusted, "localhost")
	key, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		panic(err)
	}
	return testbroker.WithTLS(inPEM("CERTIFICATE", trusted.Certificate[0]),
		inPEM("CERTIFICATE", own.Certificate[0]), inPEM("PRIVATE KEY", key))
}

// Given a broker that demands client certificates of one CA, then client and Subscriber work
// over TLS. If a certificate, a name or a port is wrong, then the error says which setting to mend.
func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	node, trusted, other := commonNode(t), authorities()[0], authorities()[1]
	node.Grant(t, testbroker.Everything("/", "tls"))
	url, good := node.TLSURL(), trusting(trusted, trusted)

	t.Run("serves", func(t *testing.T) {
		var calls rig.Timeline
		r := rig.Start(t, rig.Config{
			URL: strings.Replace(url, "guest:guest", "tls:tls", 1), AdminURL: node.URL(),
			Configure: func(cfg *wamqp.Config) { cfg.Connection.TLSConfig = good }, Policy: rig.Quickly(1),
			Handle: calls.FailUntil(2),
		})
		rig.Publish(t, node.URL(), "", r.Queue, amqp.Publishing{Body: []byte("over TLS")})
		rig.WaitFor(t, "the retry", func() bool { return calls.Count() == 2 })
		require.Contains(t, node.Ctl(t, "eval", listConnections), "CN=shop")

		node.Ctl(t, "eval", endConnections("tls"))
		rig.Publish(t, node.URL(), "", r.Queue, amqp.Publishing{Body: []byte("over TLS again")})
		rig.WaitFor(t, "the message after a reconnect", func() bool { return calls.Count() == 3 })
	})

	noTLS := strings.Replace(node.URL(), "amqp:", "amqps:", 1)
	for name, c := range map[string]struct {
		url  string
		tls  *tls.Config
		want []string
	}{
		"CA not trusted": {
			url, trusting(nil, trusted), []string{"unknown authority", "TLSConfig.RootCAs"},
		},
		"wrong CA":              {url, trusting(other, trusted), []string{"TLSConfig.RootCAs"}},
		"no client certificate": {url, trusting(trusted, nil), []string{"TLSConfig.Certificates"}},
		"another CA's client":   {url, trusting(trusted, other), []string{"TLSConfig.Certificates"}},
		"another name": {
			strings.Replace(url, "localhost", "127.0.0.1", 1), good,
			[]string{"127.0.0.1", "TLSConfig.ServerName"},
		},
		"TLS on the plain port": {noTLS, good, []string{"does not speak TLS", "amqp://"}},
		"no TLS on the TLS port": {
			strings.Replace(url, "amqps:", "amqp:", 1), nil, []string{"speaks TLS", "amqps://"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			conn := wamqp.ConnectionConfig{
				AmqpURI: strings.Replace(c.url, "guest:guest", "guest:s3cr3t", 1), TLSConfig: c.tls,
			}
			_, err := topology.Open(t.Context(), conn, topology.PerQueue{})
			rig.RequireTexts(t, err, c.want...)
			require.NotContains(t, err.Error(), "s3cr3t")
		})
	}
}
