package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/millpond-go/millpond/cmd/millpond/page"
	"github.com/millpond-go/millpond/topology/operate"
)

// The flags of serve.
const (
	flagListen       = "listen"
	flagAllowActions = "allow-actions"
	flagState        = "state"
	flagToken        = "token-file"
	flagReadToken    = "read-token-file"
	flagUser         = "user"
	flagPassword     = "password-file"
	flagCert         = "tls-cert"
	flagKey          = "tls-key"
	flagBasePath     = "base-path"
	flagMask         = "mask"
	flagHost         = "host"
	flagPrometheus   = "prometheus"
)

// Secrets are in files or in the environment, because every user of a machine sees the arguments of
// a process.
const (
	envToken     = "MILLPOND_SERVE_TOKEN"
	envReadToken = "MILLPOND_SERVE_READ_TOKEN"
	envPassword  = "MILLPOND_SERVE_PASSWORD"
)

func (a app) serve() *cli.Command {
	return &cli.Command{
		Name: "serve", Usage: "a web page for the engineer on call",
		Description: "Queues, dead letters by cause, waiting and stranded messages, the findings of " +
			"verify and doctor.\nIt listens on this machine alone unless --listen says otherwise; " +
			"then it needs a token\nor a password. Secrets are read from files or from the environment:\n" +
			envToken + " and " + envReadToken + ", of 12 characters and more,\nor --user and " +
			envPassword + ". The read token may only look.\n" +
			"Without --allow-actions no account can change a queue. With it, and without an account, a\n" +
			"token is printed that is good for one login; the next one is printed then.",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: flagListen, Usage: "`ADDRESS` and port", Value: "127.0.0.1:8099",
			},
			&cli.BoolFlag{Name: flagAllowActions, Usage: "let accounts that may act change queues"},
			&cli.StringFlag{
				Name: flagState, Usage: "with --" + flagAllowActions + ": `FOLDER` of the journal of " +
					"actions, discarded letters, and the audit log unless --audit names one; one server uses " +
					"it at a time. ~/.local/state/millpond/serve without it",
			},
			&cli.StringFlag{
				Name: flagToken, Usage: "`FILE` with a name and a token of each person who may act, a line " +
					"each, as in: anna TOKEN; or " + envToken,
			},
			&cli.StringFlag{
				Name:  flagReadToken,
				Usage: "`FILE` with the token of accounts that may only look; or " + envReadToken,
			},
			&cli.StringFlag{Name: flagUser, Usage: "`NAME` for basic authentication, which may act"},
			&cli.StringFlag{
				Name: flagPassword, Usage: "`FILE` with the password of --user; or " + envPassword,
			},
			&cli.StringFlag{Name: flagCert, Usage: "`FILE` with the TLS certificate, PEM"},
			&cli.StringFlag{Name: flagKey, Usage: "`FILE` with its key"},
			&cli.StringFlag{
				Name: flagBasePath, Usage: "`PATH` of the page behind a proxy, as in /ops/millpond",
			},
			&cli.StringSliceFlag{
				Name: flagMask, Usage: "never show payload values at this `JSONPATH`, as in $.card.number " +
					"or $..email; may be repeated. Payloads that are no JSON are then not shown",
			},
			&cli.StringSliceFlag{
				Name: flagHost, Usage: "`NAME` by which browsers reach the page, besides localhost and IP " +
					"addresses; may be repeated",
			},
			&cli.StringFlag{
				Name: flagPrometheus, Usage: "`URL` of a Prometheus that has the metrics of the broker or of " +
					"the services: charts of up to 30 days; without it the last hour",
			},
		},
		Action: a.runServer,
	}
}

func (a app) runServer(ctx context.Context, c *cli.Command) (err error) {
	if c.NArg() > 0 {
		return usage("%s takes no arguments", c.FullName())
	}
	config, err := a.pageConfig(c)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		// The page keeps up to a million letters in memory. A collection at half as much garbage as
		// usual costs little, because nothing is rendered between two requests.
		debug.SetGCPercent(50)
	}
	// The page sets a limit for each write itself, because streams have no end.
	server := &http.Server{
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	if server.TLSConfig, err = certificate(c); err != nil {
		return err
	}
	if err := mayListen(c.String(flagListen), len(config.Accounts)); err != nil {
		return err
	}
	if config.AllowActions && len(config.Accounts) == 0 { // other users of this machine reach the page
		say := func(token string) {
			fmt.Fprintf(a.err, "millpond: log in with the token %s, which is good once\n", token)
		}
		local := page.Account{
			Name: byOf(c), Secret: rand.Text(), Token: true, Role: page.RoleAct, Once: say,
		}
		config.Accounts = append(config.Accounts, local)
		say(local.Secret)
	}
	handler, err := page.New(config)
	if err != nil {
		return usage("%v", err)
	}
	defer func() { err = errors.Join(err, handler.Close()) }()
	server.Handler = handler
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.String(flagListen))
	if err != nil {
		return err
	}
	scheme := "http"
	if server.TLSConfig != nil {
		scheme, listener = "https", tls.NewListener(listener, server.TLSConfig)
	}
	fmt.Fprintf(a.err, "millpond: the page is at %s://%s%s/\n", scheme, listener.Addr(),
		strings.TrimRight(config.BasePath, "/"))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	_ = handler.Close() // ends the streams
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(limited); err != nil {
		return server.Close()
	}
	return nil
}

func (a app) pageConfig(c *cli.Command) (page.Config, error) {
	config := page.Config{
		URL: addressOf(c), Management: c.String(flagManagement), BasePath: c.String(flagBasePath),
		Hosts: c.StringSlice(flagHost), AllowActions: c.Bool(flagAllowActions),
		Masks: c.StringSlice(flagMask), Prometheus: c.String(flagPrometheus),
	}
	switch {
	case config.AllowActions:
		config.StateFolder, config.AuditFile = c.String(flagState), c.String(flagAudit)
		if home := a.stateHome(); config.StateFolder == "" {
			if home == "" {
				return config, usage("--%s: name a folder, because no home folder is known", flagState)
			}
			config.StateFolder, config.AuditFile = filepath.Join(home, "serve"), a.auditFile(c)
		}
	case c.IsSet(flagState):
		return config, usage("--%s goes with --%s", flagState, flagAllowActions)
	}
	if c.Bool(flagNoManagement) {
		return config, usage("--%s: the page needs the management API, which shows the queues",
			flagNoManagement)
	}
	if c.Bool(flagNoPolicies) {
		config.Operator = append(config.Operator, operate.WithoutPolicyCheck())
	}
	for _, s := range []struct {
		flag, variable string
		account        page.Account
	}{
		{flagToken, envToken, page.Account{Name: "token", Token: true, Role: page.RoleAct}},
		{flagReadToken, envReadToken, page.Account{Name: "read token", Token: true, Role: page.RoleRead}},
		{flagPassword, envPassword, page.Account{Name: c.String(flagUser), Role: page.RoleAct}},
	} {
		secret, err := a.secret(c, s.flag, s.variable)
		if err != nil {
			return config, err
		}
		switch {
		case s.account.Token:
			more, err := tokens(s.account, secret, config.AllowActions)
			if err != nil {
				return config, usage("--%s, or %s: %v", s.flag, s.variable, err)
			}
			config.Accounts = append(config.Accounts, more...)
		case secret != "":
			s.account.Secret = secret
			config.Accounts = append(config.Accounts, s.account)
		case c.IsSet(flagUser):
			return config, usage("--%s needs --%s, or the environment variable %s", flagUser, flagPassword,
				envPassword)
		}
	}
	return config, nil
}

// tokens reads a token, or a line with a name and a token for each person. Accounts that act need
// names, because the audit log says who has acted.
func tokens(like page.Account, text string, act bool) (all []page.Account, err error) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch like.Secret = strings.TrimSpace(line); {
		case len(words) == 2:
			all = append(all, page.Account{
				Name: words[0], Secret: words[1], Token: true, Role: like.Role,
			})
		case len(words) == 1 && act && like.Role == page.RoleAct:
			return nil, errors.New("a token has no name, and the audit log says who acts: write a line " +
				"with a name and a token for each person, as in \"anna TOKEN\"")
		case len(words) == 1:
			all = append(all, like)
		case len(words) > 2:
			return nil, errors.New("a line has more than a name and a token")
		}
	}
	return all, nil
}

// stateHome is the folder of the tool's state; empty without a home folder.
func (a app) stateHome() string {
	folder := a.environment("XDG_STATE_HOME")
	if home := a.environment("HOME"); folder == "" && home != "" {
		folder = filepath.Join(home, ".local", "state")
	}
	if folder == "" {
		return ""
	}
	return filepath.Join(folder, "millpond")
}

// secret reads a secret from the file of a flag, or from the environment.
func (a app) secret(c *cli.Command, flag, variable string) (string, error) {
	if !c.IsSet(flag) {
		return a.environment(variable), nil
	}
	text, err := os.ReadFile(c.String(flag))
	if err != nil {
		return "", usage("--%s: %v", flag, err)
	}
	if secret := strings.TrimSpace(string(text)); secret != "" {
		return secret, nil
	}
	return "", usage("--%s: file %q is empty", flag, c.String(flag))
}

func certificate(c *cli.Command) (*tls.Config, error) {
	cert, key := c.String(flagCert), c.String(flagKey)
	if cert == "" && key == "" {
		return nil, nil //nolint:nilnil // without TLS
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, usage("--%s and --%s: %v", flagCert, flagKey, err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
	}, nil
}

// mayListen returns an error for an address that other machines reach, unless accounts are needed.
func mayListen(address string, accounts int) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return usage("--%s %q: write an address and a port, as in 127.0.0.1:8099", flagListen, address)
	}
	ip, err := netip.ParseAddr(host)
	if accounts > 0 || host == "localhost" || err == nil && ip.IsLoopback() {
		return nil
	}
	return usage("--%s %s: other machines reach this address, so a token or a password is needed: "+
		"set %s, or --%s and %s; and use --%s and --%s, because without TLS the network sees them",
		flagListen, address, envToken, flagUser, envPassword, flagCert, flagKey)
}
