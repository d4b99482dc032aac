package page_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/millpond-go/millpond/cmd/millpond/page"
)

// A service shows the page in its own mux, to people who have the token.
func ExampleNew() {
	var p *page.Handler
	roles := map[string]page.Role{"on call": page.RoleAct, "colleague": page.RoleRead}
	p, err := page.New(page.Config{
		URL: "amqp://guest:guest@localhost:5672/", BasePath: "/ops/millpond",
		Accounts: []page.Account{
			{Name: "on call", Secret: "a long random token", Token: true, Role: roles["on call"]},
			{Name: "colleague", Secret: "another token", Token: true, Role: roles["colleague"]},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	mux := http.NewServeMux()
	mux.Handle("/ops/millpond/", p)

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost/ops/millpond/", nil))
	fmt.Println(answer.Code, answer.Header().Get("WWW-Authenticate"))
	// Output:
	// 401 Bearer
}

// A service that has logged its users in says who may look, and who may act.
func ExampleConfig_authorize() {
	roles := map[string]page.Role{"ada": page.RoleAct, "bob": page.RoleRead}
	p, err := page.New(page.Config{
		URL: "amqp://guest:guest@localhost:5672/", AllowActions: true,
		Authorize: func(r *http.Request) (name string, role page.Role) {
			name = r.Header.Get("X-Our-User") // of your session
			return name, roles[name]
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer p.Close()
	for _, user := range []string{"ada", "bob", "eve"} {
		request := httptest.NewRequest(http.MethodGet, "http://localhost/actions", nil)
		request.Header.Set("X-Our-User", user)
		answer := httptest.NewRecorder()
		p.ServeHTTP(answer, request)
		fmt.Println(answer.Code, strings.Contains(answer.Body.String(), "may act"))
	}
	// Output:
	// 200 true
	// 200 false
	// 403 false
}
