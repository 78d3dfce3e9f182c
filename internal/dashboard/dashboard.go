// Package dashboard serves the pages for people, in HTML that works without JavaScript. New has the
// list of all paths.
//
// A request passes middleware.go (headers, cross-origin protection, session) and then the handler
// of its page. PAGE.go has the handler. It reads the data through the methods of internal/tenants
// that the admin API also uses, and stores the result in a view. PAGE.templ has the HTML of the
// view and calls nothing else. PAGE_templ.go is generated from it.
//
// layout.templ is the frame of every page, and frame.go has its data and the navigation.
// components.templ has the parts that several pages use. web/static/css/app.css has the styles.
//
// An example: GET /instances. middleware.go finds the session of an operator. instances.go asks all
// instances for their state, and makes a row of text for each. instances.templ writes the table.
package dashboard

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/accesslog"
	"weir/internal/billing"
	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/places"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// Deps are the parts of the dashboard.
type Deps struct {
	Store    *tenants.Store
	Policies *check.Policies
	Checker  *check.Checker
	Recent   *recent.Log // recent decisions, of all instances
	// Instances returns the number of instances that share the limits during an outage.
	// DegradedSince returns when the circuit breaker opened; zero: it is not open.
	Instances     func() int
	DegradedSince func() time.Time
	Logger        *slog.Logger
	// Alive estimates the counters of a tenant that are alive, if its tier has this bound or, for
	// 0, the default one; nil: unknown.
	Alive func(ctx context.Context, tenant limit.TenantID, bound int64) (int64, error)
	// Follow makes this instance apply what was just written for a tenant, within a short time.
	// nil: it is notified as for every change.
	Follow func(ctx context.Context, tenant limit.TenantID)
	// Observe returns a function that counts the answered requests of a route, "" for none; nil:
	// nothing is counted.
	Observe func(pattern string) func(status int, took time.Duration)
	Mail    *mail.Post      // nil: mail is off
	Billing *billing.Runner // replays events; nil: a new runner
	// PublicURL is the beginning of webhook addresses; "": the address that the browser used.
	PublicURL string
	Signup    Signup // "": SignupClosed
	// Platform is the operator's tenant, whose rules are the quotas of all others; nil: pages
	// show none.
	Platform uuid.UUID
	// Stopping is closed when the process is about to end: live pages must connect elsewhere. nil:
	// never.
	Stopping   <-chan struct{}
	Now        func() time.Time   // nil: time.Now
	Processors *places.Processors // nil: own turns
	// Fail notes an error, or a redirect to the sign-in page, that takes as long as so many
	// refusals of the lane. It returns how long its client, a tenant or a site, must pause before
	// it; nil: nobody must.
	Fail func(client string, refusals int64) time.Duration
	// Counters has the counters of failed sign-ins and of requested mails. Keys names them, and
	// signs the cookies of browsers. nil: counters of this process.
	Counters engine.Engine
	Keys     check.Keys
}

type dashboard struct {
	Deps
	limits     signInLimits
	deviceKey  []byte             // signs the cookies of browsers
	codes      *throttle.Throttle // codes of terminals
	playground *playground
	errands    *places.Turns[string]     // places for tasks after answers, by site
	after      sync.WaitGroup            // of these tasks
	forms      *networkPlaces            // places for forms that are being sent
	uploads    *networkPlaces            // of these, for forms with a picture
	working    *networkPlaces            // places for pages that are created
	visiting   *places.Places[uuid.UUID] // of these, for pages of a tenant, by tenant
	exports    *tenants.ExportPlaces     // places for files that are created and sent
	turns      pageTurns                 // for what takes a processor
	longTurns  pageTurns                 // for what takes it for long
	trying     *places.Turns[uuid.UUID]  // places for previews of rules, by tenant
	unread     *places.Bytes[uuid.UUID]  // bytes of long pages that are sent, by tenant
	paused     pausedRefusals            // before their answers
	observers  map[string]observer       // by pattern of the route
	access     *accesslog.Budget         // of log lines about requests
	hub        *hub

	portals       *places.Places[uuid.UUID] // customer pages that are being created, by tenant
	logos         *places.Bytes[uuid.UUID]  // bytes of logos that are sent to customers, by tenant
	portalLoads   *throttle.Throttle        // of the customer page
	requestMails  *throttle.Throttle        // about requests of customers
	opened        *openedCounts             // requests of customers
	verifications *places.Places[uuid.UUID] // of audit trails that run or wait, by tenant
	verifying     *places.Turns[uuid.UUID]  // places for those that run, by tenant
	verifyWait    time.Duration             // for one of these
}

// maxWorking is the maximum number of pages that are created concurrently, so that browsers do not
// slow down checks. It is more than Postgres can answer concurrently.
const maxWorking = 64

// networkPlaces are places by the networks of a client.
type networkPlaces = places.Nested[netip.Prefix]

func newNetworkPlaces() *networkPlaces { return places.NewNested[netip.Prefix]() }

// maxNetworkWorking is the maximum for one network, which many people may share. Wider networks
// have more, and leave some to others (places.Nested).
const maxNetworkWorking = 32

// leastVisiting is how many pages of a tenant, of its members and its customers, are created
// concurrently, however many those of other tenants are. Otherwise a tenant has at most a quarter
// of the places that are left: pages that wait for the tenant's turn in Postgres have their place
// meanwhile, and they can be requested from many networks.
const leastVisiting = 2

// The maximum number of files that are created and sent concurrently, of all tenants and of one. A
// file is created while it is sent. A tenant without any that is refused gets the next place, and
// while it waits, files end that browsers read slowly.
const (
	maxExports       = 16
	maxTenantExports = 2
)

// The maximum number of bytes of long pages that are sent at the same time, of all tenants and of
// one. A browser that does not read keeps its page in memory until the timeout, and a page of the
// audit trail can have several MB.
const (
	longPage        = 64 << 10
	maxUnread       = 128 << 20
	maxTenantUnread = 32 << 20
)

// The maximum number of concurrent tasks after answers, of all sites and of one. Two places are for
// sites that have none. Everybody can cause such a task, with a form for unknown clients.
const (
	maxErrands     = 4
	maxSiteErrands = 2
)

// New returns the handler of all paths that Serves reports. Package web serves the files of the
// pages.
func New(deps Deps) http.Handler { return newDashboard(deps).handler() }

func newDashboard(deps Deps) *dashboard {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Mail == nil {
		deps.Mail = mail.Off()
	}
	if deps.Billing == nil {
		deps.Billing = billing.New(billing.Options{Store: deps.Store, Logger: deps.Logger})
	}
	if deps.Counters == nil {
		deps.Counters = throttle.Memory(deps.Now)
	}
	if deps.Signup == "" {
		deps.Signup = SignupClosed
	}
	d := &dashboard{
		Deps: deps, access: accesslog.New(deps.Logger), playground: newPlayground(deps.Now), deviceKey: deps.Keys.Derive("browsers of the dashboard"),
		errands: places.NewTurns[string](maxErrands, maxSiteErrands, 2), forms: newNetworkPlaces(), uploads: newNetworkPlaces(), working: newNetworkPlaces(),
		exports: tenants.NewExportPlaces(maxExports, maxTenantExports, deps.Now),
	}
	d.limits = d.newSignInLimits()
	d.codes = d.newThrottle("device", codeRules...)
	d.portals, d.portalLoads = places.New[uuid.UUID](0, 0), d.newThrottle("portal", portalRules...) // TakeShare has the numbers
	d.logos = places.NewBytes[uuid.UUID](maxLogosUnread, maxTenantLogosUnread)
	d.requestMails, d.opened = d.newThrottle("request-mail", requestMailRules...), newOpenedCounts(deps.Now)
	processors := runtime.GOMAXPROCS(0)
	if deps.Processors == nil {
		deps.Processors = places.NewProcessors(processors)
	}
	d.turns, d.longTurns = newPageTurns(deps.Processors.Short), newPageTurns(deps.Processors.Long)
	d.trying = places.NewTurns[uuid.UUID](places.OnHalf(processors, maxTrying), 1, 0)
	d.verifications = places.New[uuid.UUID](maxWorking, maxTenantVerifying)
	d.verifying, d.verifyWait = places.NewTurns[uuid.UUID](max(minVerifying, places.OnHalf(processors, maxVerifying)), 1, 0), verifyWait
	d.visiting = places.New[uuid.UUID](0, 0) // TakeShare has the numbers
	d.hub, d.unread = newHub(d), places.NewBytes[uuid.UUID](maxUnread, maxTenantUnread)
	return d
}

// handler returns the handler of all paths.
func (d *dashboard) handler() http.Handler {
	r := chi.NewRouter()
	r.Use(d.track, d.guard)
	r.NotFound(d.open(func(_ http.ResponseWriter, _ *http.Request) error { return tenants.ErrNotFound }))
	r.MethodNotAllowed(d.open(func(_ http.ResponseWriter, _ *http.Request) error { return errMethod }))

	r.Get("/login", d.open(d.loginPage))
	r.Post("/login", d.open(d.login))
	r.Get("/forgot", d.open(d.forgotPage))
	r.Post("/forgot", d.open(d.forgot))
	r.Get("/reset/{token}", d.open(d.resetPage))
	r.Post("/reset/{token}", d.open(d.reset))
	r.Get("/invitation/{token}", d.open(d.invitationPage))
	r.Post("/invitation/{token}", d.open(d.accept))
	r.Get("/signup", d.open(d.signupPage))
	r.Post("/signup", d.open(d.signup))
	r.Get("/signup/{token}", d.open(d.signupLinkPage))
	r.Post("/signup/{token}", d.open(d.endSignup))
	r.Get("/dev/mail", d.open(d.devMail))

	r.Post("/theme", d.open(d.chooseTheme))

	r.Get("/portal/open/{token}", d.portalOpen(d.portalLinkPage))
	r.Post("/portal/open/{token}", d.portalOpen(d.usePortalLink))
	r.Get("/portal/accent/{name}", d.open(d.portalAccent))
	r.Get("/portal/{visit}", d.portalPage(d.portalHome))
	r.Get("/portal/{visit}/logo", d.portalPage(d.portalLogo))
	r.Post("/portal/{visit}/requests", d.portalPage(d.requestMore))

	r.Get("/tester", d.page(d.tester))
	r.Get("/tester/subjects", d.page(d.testerSubjects))
	r.Get("/tester/resources", d.page(d.knownResources))
	r.Get("/playground", d.open(d.playgroundPage))
	r.Get("/playground/stage", d.open(d.playgroundStage))
	r.Get("/playground/{algorithm}", d.open(d.algorithmPage))

	r.Get("/", d.page(d.overview))
	r.Get("/live/overview", d.stream(d.liveOverview))
	r.Get("/usage", d.page(d.usage))
	r.Get("/metered", d.page(d.metered))
	r.Get("/metered/export", d.page(d.meteredExport))
	r.Get("/decisions", d.page(d.decisions))
	r.Get("/live/decisions", d.stream(d.liveDecisions))
	r.Get("/audit", d.page(d.audit))
	r.Get("/rules", d.page(d.rules))
	r.Post("/rules", d.write(tenants.MayEdit, d.createRule))
	r.Get("/rules/new", d.page(d.newRulePage))
	r.Post("/rules/preview", d.sent(tenants.MayEdit, d.previewRule))
	r.Get("/rules/{slug}", d.page(d.rule))
	r.Get("/rules/{slug}/", d.page(d.rule))
	r.Get("/rules/{slug}/edit", d.page(d.editRulePage))
	r.Post("/rules/{slug}/edit", d.write(tenants.MayEdit, d.editRule))
	r.Post("/rules/{slug}/mode", d.write(tenants.MayEdit, d.setRuleMode))
	r.Post("/rules/{slug}/delete", d.write(tenants.MayEdit, d.deleteRule))
	r.Get("/rules/{slug}/history", d.page(d.ruleHistory))
	r.Post("/rules/{slug}/restore", d.write(tenants.MayEdit, d.restoreRule))
	r.Get("/plans", d.page(d.plans))
	r.Post("/plans", d.write(tenants.MayEdit, d.createPlan))
	r.Post("/plans/changes/cancel", d.write(tenants.MayEdit, d.cancelPlanChange))
	r.Get("/plans/new", d.page(d.newPlanPage))
	r.Get("/plans/{plan}/edit", d.page(d.editPlanPage))
	r.Post("/plans/{plan}/edit", d.write(tenants.MayEdit, d.editPlan))
	r.Post("/plans/{plan}/default", d.write(tenants.MayEdit, d.makeDefault))
	r.Post("/plans/{plan}/delete", d.write(tenants.MayEdit, d.deletePlan))
	r.Get("/plans/{plan}/versions", d.page(d.planVersions))
	r.Post("/plans/{plan}/versions", d.write(tenants.MayEdit, d.publishPlan))
	r.Post("/plans/{plan}/versions/{version}/delete", d.write(tenants.MayEdit, d.deleteVersion))
	r.Post("/plans/{plan}/migrations", d.write(tenants.MayEdit, d.createMigration))
	r.Post("/plans/{plan}/migrations/preview", d.sent(tenants.MayEdit, d.previewMigration))
	r.Post("/plans/{plan}/migrations/{id}/cancel", d.write(tenants.MayEdit, d.cancelMigration))
	r.Get("/plans/{plan}/limits/{rule}", d.page(d.limitPage))
	r.Post("/plans/{plan}/limits/{rule}", d.write(tenants.MayEdit, d.saveLimit))
	r.Post("/plans/{plan}/limits/{rule}/preview", d.sent(tenants.MayEdit, d.previewLimit))
	r.Get("/routes", d.page(d.routes))
	r.Post("/routes", d.write(tenants.MayEdit, d.createRoute))
	r.Get("/routes/new", d.page(d.newRoutePage))
	r.Get("/routes/{slug}", d.page(d.route))
	r.Get("/routes/{slug}/", d.page(d.route)) // of a route called "new"
	r.Post("/routes/{slug}", d.sent(0, d.testRoute))
	r.Post("/routes/{slug}/", d.sent(0, d.testRoute))
	r.Get("/routes/{slug}/edit", d.page(d.editRoutePage))
	r.Post("/routes/{slug}/edit", d.write(tenants.MayEdit, d.editRoute))
	r.Post("/routes/{slug}/delete", d.write(tenants.MayEdit, d.deleteRoute))
	r.Get("/live/subject", d.stream(d.liveSubject))
	r.Get("/subjects", d.page(d.subjects))
	r.Get("/subjects/*", d.page(d.subject))
	r.Post("/subjects/*", d.write(0, d.actOnSubject)) // each action requires its own right
	r.Get("/requests", d.page(d.requests))
	r.Post("/requests/{id}", d.write(tenants.MayBoost, d.settleRequest))
	r.Get("/keys", d.page(d.keys))
	r.Post("/keys", d.proved(tenants.MayManage, d.createKey))
	r.Get("/keys/{id}", d.page(d.key))
	r.Post("/keys/{id}", d.proved(tenants.MayManage, d.actOnKey))
	r.Get(deviceURL, d.page(d.devicePage))
	r.Post(deviceURL, d.proved(tenants.MayManage, d.approveDevice))
	r.Post(denyDeviceURL, d.write(tenants.MayManage, d.denyDevice))
	r.Get("/members", d.page(d.members))
	r.Post("/members/{id}", d.proved(tenants.MayManage, d.changeMember))
	r.Post("/members/invite", d.proved(tenants.MayManage, d.invite))
	r.Post("/members/{id}/resend", d.proved(tenants.MayManage, d.resend))
	r.Post("/members/{id}/withdraw", d.proved(tenants.MayManage, d.withdraw))

	r.Get("/billing", d.page(d.billingPage))
	r.Post("/billing", d.proved(tenants.MayManage, d.actOnBilling))
	r.Get("/billing/endpoints/{id}", d.page(d.endpointPage))
	r.Get("/billing/endpoints/{id}/wait", d.page(d.waitForEvent))
	r.Post("/billing/endpoints/{id}", d.proved(tenants.MayManage, d.actOnEndpoint))
	r.Get(billingEventsPath, d.page(d.billingEvents))
	r.Get("/live"+billingEventsPath, d.stream(d.liveEvents))
	r.Post("/billing/events/{id}/replay", d.proved(tenants.MayManage, d.replayEvent))
	r.Post("/billing/events/{id}/dismiss", d.proved(tenants.MayManage, d.dismissEvent))

	r.Get("/start", d.page(d.start))
	r.Post("/start", d.proved(tenants.MayManage, d.makeStart))
	r.Get("/start/wait", d.page(d.waitForCheck))
	r.Get("/settings", d.page(d.settings))
	r.Post("/settings", d.write(tenants.MayConfigure, d.changeSettings))
	r.Get("/settings/customer-page", d.page(d.customerPage))
	r.Get("/settings/customer-page/logo", d.page(d.customerLogo))
	r.Post("/settings/customer-page", d.write(tenants.MayConfigure, d.changeCustomerPage))
	r.Get("/settings/notifications", d.page(d.notificationsPage))
	r.Post("/settings/notifications", d.proved(tenants.MayManage, d.createNotified))
	r.Get("/settings/notifications/{id}", d.page(d.notifiedPage))
	r.Post("/settings/notifications/{id}", d.proved(tenants.MayManage, d.actOnNotified))
	r.Get(securityURL, d.page(d.security))
	r.Post(securityURL, d.proved(tenants.MayManage, d.changeSecurity))
	r.Get("/search", d.page(d.search))

	r.Get("/tenants", d.operated(d.tenants))
	r.Post("/tenants", d.operates(d.createTenant))
	r.Get("/tenants/{slug}", d.operated(d.tenant))
	r.Post("/tenants/{slug}", d.operates(d.actOnTenant))
	r.Get("/tenants/{slug}/quota", d.operated(d.newQuotaPage))
	r.Post("/tenants/{slug}/quota", d.operates(d.createQuota))
	r.Get("/instances", d.operated(d.instances))

	r.Get("/account", d.person(d.account))
	r.Post("/account/password", d.person(d.changePassword))
	r.Post("/account/email", d.person(d.requestEmail))
	r.Post("/account/leave", d.proved(0, d.leave)) // every role may leave
	r.Get("/email/{token}", d.open(d.emailPage))
	r.Post("/email/{token}", d.open(d.changeEmail))
	r.Get("/sessions", d.person(d.sessions))
	r.Post("/sessions/end", d.person(d.endSession))
	r.Post("/tenant", d.person(d.chooseTenant))
	r.Post("/logout", d.person(d.logout))
	d.observers = observersOf(r, d.Observe)
	return r
}

// segments are the first segments of the dashboard's paths, besides its start page.
var segments = map[string]bool{
	"login": true, "logout": true, "theme": true, "search": true, "settings": true, "start": true, "tenant": true, "sessions": true, "playground": true, "tester": true,
	"forgot": true, "reset": true, "email": true, "invitation": true, "signup": true, "account": true, "dev": true,
	"live": true, "usage": true, "metered": true, "decisions": true, "audit": true,
	"rules": true, "plans": true, "routes": true, "subjects": true, "keys": true, "members": true, "billing": true,
	"tenants": true, "instances": true, "portal": true, "requests": true, "device": true,
}

// Serves reports whether a path belongs to the dashboard. Other handlers of the listener serve all
// other paths.
func Serves(path string) bool {
	if path == "/" {
		return true
	}
	rest, ok := strings.CutPrefix(path, "/")
	first, _, _ := strings.Cut(rest, "/")
	return ok && segments[first]
}
