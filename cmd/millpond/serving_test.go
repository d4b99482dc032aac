package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Given an address that other machines reach, then serve refuses to start without an account. Each
// person who may act has a name.
func TestServeRefusesToBeOpen(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.com:0", "localhost.evil.example:0",
		"[::ffff:0.0.0.0]:0",
	} {
		o := tool(t, "", "", "serve", "--listen", address)
		require.Equal(t, exitUsage, o.code, address)
		require.Contains(t, o.err, "a token or a password is needed", address)
	}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "tokens")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	acting := "--allow-actions --state " + t.TempDir() + " --token-file "
	for _, c := range []struct{ args, want string }{
		{"--listen nowhere", "write an address and a port"},
		{"--listen 0.0.0.0:0 --token-file " + file("\n"), "is empty"},
		{"--listen 0.0.0.0:0 --token-file " + file("") + ".not", "no such file"},
		{acting + file("a-token-of-many\n"), "a token has no name"},
		{acting + file("anna a-token-of-many x\n"), "more than a name and a token"},
		{acting + file("anna short\nben a-token-of-one"), `account "anna": its secret has less`},
		{"--listen 0.0.0.0:0 --user ada", "needs --password-file"},
		{"--mask card", "write a JSON path"},
		{"--base-path ops", "BasePath"},
		{"--host http://x", "write the name alone"},
		{"--tls-cert x", "--tls-key"},
		{"extra", "takes no arguments"},
		{"--no-x", "no-x"},
	} {
		o := tool(t, "", "", append([]string{"serve"}, strings.Fields(c.args)...)...)
		require.Equal(t, exitUsage, o.code, c.args)
		require.Contains(t, o.err, c.want)
	}
}

// The folder of the journal is the user's own, or the named one; one server uses it at a time.
func TestServeKeepsItsStateInOneFolder(t *testing.T) {
	t.Parallel()
	o := tool(t, "", "", "serve", "--state", "x")
	require.Equal(t, exitUsage, o.code)
	require.Contains(t, o.err, "--state goes with --allow-actions")
	o = tool(t, "", "", "--url", "amqp://127.0.0.1:1/", "serve", "--allow-actions")
	require.Equal(t, exitUsage, o.code, o.err)
	require.Contains(t, o.err, "--state: name a folder")

	home := t.TempDir()
	_, said := served(t, map[string]string{"HOME": home}, "--listen", "127.0.0.1:0", "--allow-actions")
	require.Regexp(t, `log in with the token \w{26}, which is good once\n`, said.String())
	folder := filepath.Join(home, ".local", "state", "millpond", "serve")
	require.DirExists(t, folder)
	o = tool(t, "", "", "--url", "amqp://127.0.0.1:1/", "serve", "--listen", "127.0.0.1:0",
		"--allow-actions", "--state", folder)
	require.Equal(t, exitUsage, o.code, o.err)
	require.Contains(t, o.err, "another process uses the folder: name another one, with --state")
}

// lines are the output of a server, while it runs.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// served starts serve and returns its address.
func served(t *testing.T, environment map[string]string, args ...string) (url string, out *lines) {
	t.Helper()
	out = new(lines)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{
			"millpond", "--url", "amqp://user:secret-of-the-broker@127.0.0.1:1/", "serve",
		}, args...), stdio{
			in: strings.NewReader(""), out: io.Discard, err: out, terminal: func(any) bool { return false },
			environment: func(name string) string { return environment[name] },
		})
	}()
	t.Cleanup(func() {
		stop()
		require.Equal(t, exitDone, <-ended, out.String())
	})
	at := regexp.MustCompile(`https?://\S+`)
	require.Eventually(t, func() bool { return at.MatchString(out.String()) }, patience,
		10*time.Millisecond)
	return at.FindString(out.String()), out
}

// Given a token in the environment and a certificate, then serve listens at any address, by TLS,
// and prints no secret.
func TestServeWithTokenAndTLS(t *testing.T) {
	t.Parallel()
	cert, key, pool := certificateFiles(t)
	const token, reader = "a-token-of-the-environment", "a-token-of-a-file"
	file := filepath.Join(t.TempDir(), "reader")
	require.NoError(t, os.WriteFile(file, []byte(reader+"\n"), 0o600))
	url, out := served(t, map[string]string{envToken: token}, "--listen", "0.0.0.0:0",
		"--tls-cert", cert, "--tls-key", key, "--read-token-file", file)
	_, port, err := net.SplitHostPort(strings.TrimSuffix(strings.TrimPrefix(url, "https://"), "/"))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true,
	}}
	get := func(authorization string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
			"https://127.0.0.1:"+port+"/", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", authorization)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp
	}
	require.Equal(t, http.StatusUnauthorized, get("").StatusCode)
	require.Equal(t, http.StatusOK, get("Bearer "+reader).StatusCode)
	got := get("Bearer " + token)
	require.Equal(t, http.StatusOK, got.StatusCode)
	require.Contains(t, got.Header.Get("Strict-Transport-Security"), "max-age")
	require.Contains(t, got.Header.Get("Set-Cookie"), "Secure")
	require.NotContains(t, out.String(), token)
	require.NotContains(t, out.String(), "secret-of-the-broker")
}

// A request that is never finished, or whose headers are too large, ends.
func TestServeBoundsHeaders(t *testing.T) {
	t.Parallel()
	url, _ := served(t, nil, "--listen", "127.0.0.1:0")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("X-Large", strings.Repeat("x", 64<<10))
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)

	slow, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"))
	require.NoError(t, err)
	defer slow.Close()
	_, err = io.WriteString(slow, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
	require.NoError(t, err)
	require.NoError(t, slow.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.ReadAll(slow)
	require.NoError(t, err, "the server ends the connection")
}

// certificateFiles writes the certificate of net/http/httptest and its key.
func certificateFiles(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	known := httptest.NewTLSServer(nil)
	defer known.Close()
	pair := known.TLS.Certificates[0]
	secret, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	write := func(kind string, data []byte) string {
		file := filepath.Join(t.TempDir(), "x.pem")
		block := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
		require.NoError(t, os.WriteFile(file, block, 0o600))
		return file
	}
	pool = x509.NewCertPool()
	pool.AddCert(known.Certificate())
	return write("CERTIFICATE", pair.Certificate[0]), write("PRIVATE KEY", secret), pool
}
