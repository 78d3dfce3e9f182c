package frameworks

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirtest"
)

// try sends an allowed and a denied request, and verifies the checks and the answers.
func try(t *testing.T, limiter *weirtest.Fake, server http.Handler, resource string, called *int) {
	t.Helper()
	for i, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		r := httptest.NewRequest("GET", "/orders/7", nil)
		r.Header.Set("X-Customer", "user_42")
		w := httptest.NewRecorder()
		server.ServeHTTP(w, r)
		if w.Code != want || w.Header().Get("X-RateLimit-Limit") != "100" {
			t.Errorf("request %d: status %d, want %d: %v", i, w.Code, want, w.Header())
		}
		if check := limiter.Asked()[i]; check.Subject != "user_42" || check.Resource != resource {
			t.Errorf("asked %+v, want the resource %s", check, resource)
		}
	}
	if *called != 1 {
		t.Errorf("the handler was called %d times", *called)
	}
}

func newGuard() (weir.Guard, *weirtest.Fake) {
	limiter := weirtest.Script(weirtest.Allowed(), weirtest.Denied(time.Minute))
	return weir.Guard{Checker: limiter, Subject: func(r *http.Request) string { return r.Header.Get("X-Customer") }}, limiter
}

func TestChi(t *testing.T) {
	guard, limiter := newGuard()
	called := 0
	orders := func(w http.ResponseWriter, _ *http.Request) { called++ }

	router := chi.NewRouter()
	router.With(guard.Handler).Get("/orders/{id}", orders) // the resource is "GET /orders/{id}"

	try(t, limiter, router, "GET /orders/{id}", &called)
}

// In a group, a subrouter and a mounted router, the resource is the whole template.
func TestChiSubrouters(t *testing.T) {
	for name, register := range map[string]func(router chi.Router, guard weir.Guard, orders http.HandlerFunc){
		"group": func(router chi.Router, guard weir.Guard, orders http.HandlerFunc) {
			router.Group(func(r chi.Router) {
				r.Use(guard.Handler)
				r.Get("/orders/{id}", orders)
			})
		},
		"route": func(router chi.Router, guard weir.Guard, orders http.HandlerFunc) {
			router.Route("/orders", func(r chi.Router) { r.With(guard.Handler).Get("/{id}", orders) })
		},
		"mount": func(router chi.Router, guard weir.Guard, orders http.HandlerFunc) {
			mounted := chi.NewRouter()
			mounted.With(guard.Handler).Get("/{id}", orders)
			router.Mount("/orders", mounted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard, limiter := newGuard()
			called := 0
			router := chi.NewRouter()
			register(router, guard, func(http.ResponseWriter, *http.Request) { called++ })
			try(t, limiter, router, "GET /orders/{id}", &called)
		})
	}
}

// Before chi 5.3, Request.Pattern has only the template within a subrouter, or nothing.
func TestOlderChi(t *testing.T) {
	guard, limiter := newGuard()
	called := 0
	orders := func(w http.ResponseWriter, _ *http.Request) { called++ }

	guard.Resource = func(r *http.Request) string {
		return weir.Method(r) + " " + chi.RouteContext(r.Context()).RoutePattern()
	}

	router := chi.NewRouter()
	router.Route("/orders", func(r chi.Router) { r.With(guard.Handler).Get("/{id}", orders) })
	try(t, limiter, router, "GET /orders/{id}", &called)
}

// A guard in front of all routes asks the router.
func TestChiInFront(t *testing.T) {
	guard, limiter := newGuard()
	called := 0
	orders := func(w http.ResponseWriter, _ *http.Request) { called++ }

	router := chi.NewRouter()
	guard.Resource = func(r *http.Request) string {
		return strings.TrimSpace(weir.Method(r) + " " + router.Find(chi.NewRouteContext(), r.Method, r.URL.Path))
	}
	router.Use(guard.Handler)

	router.Route("/orders", func(r chi.Router) { r.Get("/{id}", orders) })
	try(t, limiter, router, "GET /orders/{id}", &called)

	// A path without a route must not become a resource.
	resource := guard.Resource
	guard, limiter = newGuard()
	guard.Resource = resource
	router = chi.NewRouter()
	router.Use(guard.Handler)
	router.Get("/orders/{id}", orders)
	r := httptest.NewRequest("GET", "/elsewhere/7", nil)
	r.Header.Set("X-Customer", "user_42")
	router.ServeHTTP(httptest.NewRecorder(), r)
	if got := limiter.Asked()[0].Resource; got != "GET" {
		t.Errorf("the resource of a path without a route is %q", got)
	}
}

func TestEcho(t *testing.T) {
	guard, limiter := newGuard()
	called := 0
	orders := func(c echo.Context) error {
		called++
		return c.NoContent(http.StatusOK)
	}

	server := echo.New()
	guarded := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			routed := guard
			routed.Resource = func(r *http.Request) string { return weir.Method(r) + " " + c.Path() }
			return echo.WrapMiddleware(routed.Handler)(next)(c)
		}
	}
	server.GET("/orders/:id", orders, guarded)

	try(t, limiter, server, "GET /orders/:id", &called)
}

func TestGin(t *testing.T) {
	gin.SetMode(gin.TestMode)
	guard, limiter := newGuard()
	called := 0
	orders := func(c *gin.Context) {
		called++
		c.Status(http.StatusOK)
	}

	server := gin.New()
	guarded := func(c *gin.Context) {
		routed := guard
		routed.Resource = func(r *http.Request) string { return weir.Method(r) + " " + c.FullPath() }
		passed := false
		routed.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			passed, c.Request = true, r
			c.Next()
		})).ServeHTTP(c.Writer, c.Request)
		if !passed {
			c.Abort()
		}
	}
	server.GET("/orders/:id", guarded, orders)

	try(t, limiter, server, "GET /orders/:id", &called)
}
