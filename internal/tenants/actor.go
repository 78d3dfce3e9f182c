package tenants

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Scope is a permission of a key.
type Scope string

// The scopes.
const (
	ScopeCheck Scope = "check" // run checks
	ScopeRead  Scope = "read"  // read the configuration
	ScopeWrite Scope = "write" // change it, except for changes that need ScopeManage
	// ScopeManage is for changes of API keys, members and billing.
	ScopeManage Scope = "manage"
)

// AllScopes lists the scopes in the order of pages and documents.
var AllScopes = []Scope{ScopeCheck, ScopeRead, ScopeWrite, ScopeManage}

// Scopes is a set of scopes.
type Scopes uint8

func newScopes[S ~string](list []S) (set Scopes) {
	for _, s := range list {
		if i := slices.Index(AllScopes, Scope(s)); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// Has reports whether the scope is in the set.
func (s Scopes) Has(scope Scope) bool {
	i := slices.Index(AllScopes, scope)
	return i >= 0 && s&(1<<i) != 0
}

// List returns the scopes in their order.
func (s Scopes) List() []Scope {
	list := make([]Scope, 0, len(AllScopes))
	for _, scope := range AllScopes {
		if s.Has(scope) {
			list = append(list, scope)
		}
	}
	return list
}

const everyScope Scopes = 1<<4 - 1

// Right is a kind of change. A role has a set of rights.
type Right uint8

// The rights. All members, and all keys with the scope read, may read everything of their tenant.
const (
	MayReset     Right = 1 << iota // reset a subject's counters
	MayBoost                       // give a subject a temporary override
	MayEdit                        // rules, plans, subjects and all overrides
	MayConfigure                   // the settings of the tenant itself
	MayManage                      // API keys, members and billing
	MayOwn                         // invite, change and remove owners
)

const everyRight = MayReset | MayBoost | MayEdit | MayConfigure | MayManage | MayOwn

// roleRights has the rights of each role.
var roleRights = map[Role]Right{
	Owner: everyRight, Admin: everyRight &^ MayOwn, Editor: MayReset | MayBoost | MayEdit, Support: MayReset | MayBoost, Viewer: 0,
}

// Rights returns the rights of the role.
func (r Role) Rights() Right { return roleRights[r] }

// ActorKind is the kind of an actor.
type ActorKind uint8

// The kinds of actors.
const (
	KeyActor      ActorKind = iota + 1 // an API key
	OperatorActor                      // the operator, through the server's own commands
	SystemActor                        // the server itself, in one tenant
	MemberActor                        // a person signed in to the dashboard
	ProviderActor                      // a billing system, through one of its events
	CustomerActor                      // a tenant's customer, on the customer page
)

// Actor is the actor of a request and its tenant. All stores take the tenant from here. Only
// Authenticator and Session create one for a request; the zero value has no permissions.
type Actor struct {
	tenant       uuid.UUID
	kind         ActorKind
	id           uuid.UUID // of the key or the member
	name         string
	scopes       Scopes
	rights       Right // of a member; other actors have them by their scopes
	operator     bool
	keyExpiresAt time.Time  // zero: never
	bounds       *keyBounds // of the key; nil: none
}

// AsOperator returns the operator of the service, as which the server's own commands act. It has no
// tenant.
func AsOperator(name string) Actor {
	return Actor{kind: OperatorActor, name: name, scopes: everyScope, operator: true}
}

// AsSystem returns the server itself as an actor in one tenant, for example for demo data.
func AsSystem(tenant uuid.UUID, name string) Actor {
	return Actor{tenant: tenant, kind: SystemActor, name: name, scopes: everyScope}
}

// TenantID returns the tenant in which the actor acts.
func (a Actor) TenantID() uuid.UUID { return a.tenant }

// Kind returns the kind of the actor.
func (a Actor) Kind() ActorKind { return a.kind }

// KeyID returns the id of the actor's key, or the nil UUID.
func (a Actor) KeyID() uuid.UUID {
	if a.kind != KeyActor {
		return uuid.Nil
	}
	return a.id
}

// Name returns a name for people, such as that of the key.
func (a Actor) Name() string { return a.name }

// Operator reports whether the actor is the operator of the service.
func (a Actor) Operator() bool { return a.operator }

// Has reports whether the actor has the scope.
func (a Actor) Has(scope Scope) bool { return a.scopes.Has(scope) }

// May reports whether the actor has these rights: a member by the role, a key by the scopes manage
// and write (but at most those of an admin), and all others by the scope write.
func (a Actor) May(rights Right) bool {
	switch a.kind {
	case MemberActor:
		return a.rights&rights == rights
	case CustomerActor:
		return rights == 0 // what customers may do has its own methods of Store
	case KeyActor:
		return Admin.Rights()&rights == rights && a.scopes&rights.scopes() == rights.scopes()
	}
	return a.Has(ScopeWrite)
}

// scopes returns the scopes that a key needs for these rights.
func (r Right) scopes() Scopes {
	var scopes []Scope
	if r&(MayManage|MayOwn) != 0 {
		scopes = append(scopes, ScopeManage)
	}
	if r&^(MayManage|MayOwn) != 0 {
		scopes = append(scopes, ScopeWrite)
	}
	return newScopes(scopes)
}

// mayGrant reports whether the actor itself has what a key with these scopes and this expiry would
// have.
func (a Actor) mayGrant(scopes Scopes, expiresAt *time.Time) bool {
	if scopes&^a.scopes != 0 {
		return false
	}
	return a.keyExpiresAt.IsZero() || expiresAt != nil && !expiresAt.After(a.keyExpiresAt)
}

// mayGrantRole reports whether the actor itself has what a member with that role would have, except
// that admins of the operator's tenant are operators: see change.mayChangeOperators.
func (a Actor) mayGrantRole(role Role) bool {
	needed := everyScope
	switch role {
	case Viewer:
		needed = newScopes([]Scope{ScopeRead})
	case Support, Editor:
		needed = newScopes([]Scope{ScopeRead, ScopeWrite})
	}
	return a.mayGrantWithoutEnd(needed)
}

// mayGrantWithoutEnd reports whether the actor may give others these scopes, or what is worth as
// much: a membership, or an endpoint of which they know the secret or the address. Those do not
// expire, and work from every address, so a key with an expiry or with addresses gives none.
func (a Actor) mayGrantWithoutEnd(scopes Scopes) bool {
	if a.kind != KeyActor {
		return true // members are checked by their own role (mayChangeRole)
	}
	return !a.BoundToAddresses() && a.mayGrant(scopes, nil)
}

// mayTrustSender reports whether the actor may say whose payment events are applied. They change
// plans, multipliers and credits of subjects, as a key with the scope write does.
func (a Actor) mayTrustSender() bool { return a.mayGrantWithoutEnd(newScopes([]Scope{ScopeWrite})) }

// mayShow reports whether the actor may show others what a key with the scope read can read, until
// the actor itself ends.
func (a Actor) mayShow() bool { return a.kind != KeyActor || a.Has(ScopeRead) }

// mayNotify reports whether the actor may say who gets notifications, or know the secret that signs
// them. They tell what a key with the scope read can read.
func (a Actor) mayNotify() bool { return a.mayGrantWithoutEnd(newScopes([]Scope{ScopeRead})) }

// customerLabel begins the label of a customer, and of no other actor. DeleteCustomersOverrides
// names it, too.
const customerLabel = "customer:"

// Label returns the actor's name in a record: "key:NAME", or the id if it has no name.
func (a Actor) Label() string { return a.label() }

// label returns an actor's name in a record: "key:NAME", or the id if it has no name.
func (a Actor) label() string {
	switch {
	case a.kind == CustomerActor:
		return customerLabel + a.name
	case a.kind != KeyActor:
		return a.name
	case a.name == "":
		return "key:" + a.id.String()
	}
	return "key:" + a.name
}
