package tenants

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// Scope is something that a key may be used for.
type Scope string

// The scopes.
const (
	ScopeCheck Scope = "check" // ask for decisions
	ScopeRead  Scope = "read"  // read the configuration
	ScopeWrite Scope = "write" // change it, except what ScopeManage is for
	// ScopeManage is for changes of API keys, members and billing.
	ScopeManage Scope = "manage"
)

// AllScopes lists the scopes in the order in which they are shown.
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

// Right is a kind of change. What a role may do is a set of them.
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

// roleRights says what each role may change.
var roleRights = map[Role]Right{
	Owner: everyRight, Admin: everyRight &^ MayOwn, Editor: MayReset | MayBoost | MayEdit, Support: MayReset | MayBoost, Viewer: 0,
}

// Rights returns what the role may change.
func (r Role) Rights() Right { return roleRights[r] }

// ActorKind tells what somebody acts through.
type ActorKind uint8

// The kinds of actors.
const (
	KeyActor      ActorKind = iota + 1 // an API key
	OperatorActor                      // the operator, through the server's own commands
	SystemActor                        // the server itself, in one tenant
	MemberActor                        // a person signed in to the dashboard
	ProviderActor                      // a billing system, through one of its events
)

// Actor is who acts, in which tenant. All stores take the tenant from here. Only Authenticator
// and Session make one of a request; the zero value may do nothing.
type Actor struct {
	tenant       uuid.UUID
	kind         ActorKind
	id           uuid.UUID // of the key or the member
	name         string
	scopes       Scopes
	rights       Right // of a member; others have them by their scopes
	operator     bool
	keyExpiresAt time.Time // zero: never
}

// AsOperator returns the operator of the service, as whom the server's own commands act. It is
// in no tenant.
func AsOperator(name string) Actor {
	return Actor{kind: OperatorActor, name: name, scopes: everyScope, operator: true}
}

// AsSystem returns the server itself acting in one tenant, as for demo data.
func AsSystem(tenant uuid.UUID, name string) Actor {
	return Actor{tenant: tenant, kind: SystemActor, name: name, scopes: everyScope}
}

// TenantID returns the tenant in which the actor acts.
func (a Actor) TenantID() uuid.UUID { return a.tenant }

// Kind tells what the actor acts through.
func (a Actor) Kind() ActorKind { return a.kind }

// KeyID returns the id of the key that the actor uses, the nil UUID for none.
func (a Actor) KeyID() uuid.UUID {
	if a.kind != KeyActor {
		return uuid.Nil
	}
	return a.id
}

// Name returns a name for people, such as that of the key.
func (a Actor) Name() string { return a.name }

// Operator reports whether the actor may do what only the operator of the service may.
func (a Actor) Operator() bool { return a.operator }

// Has reports whether the actor may do what the scope stands for.
func (a Actor) Has(scope Scope) bool { return a.scopes.Has(scope) }

// May reports whether the actor may make changes of these kinds: a member by role, a key by the
// scopes manage and write, but at most what an admin may, and all others by the scope write.
func (a Actor) May(rights Right) bool {
	switch a.kind {
	case MemberActor:
		return a.rights&rights == rights
	case KeyActor:
		return Admin.Rights()&rights == rights && a.scopes&rights.scopes() == rights.scopes()
	}
	return a.Has(ScopeWrite)
}

// scopes returns the scopes that a key needs for changes of these kinds.
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

// KeyExpiresAt returns when the actor's key ends, the zero time for never.
func (a Actor) KeyExpiresAt() time.Time { return a.keyExpiresAt }

// mayGrant reports whether the actor has itself what a key with these scopes and that end would
// have.
func (a Actor) mayGrant(scopes Scopes, expiresAt *time.Time) bool {
	if scopes&^a.scopes != 0 {
		return false
	}
	return a.keyExpiresAt.IsZero() || expiresAt != nil && !expiresAt.After(a.keyExpiresAt)
}

// mayGrantRole reports whether the actor has itself what a member with that role would have. A
// membership does not expire, so a key that expires grants none.
func (a Actor) mayGrantRole(role Role) bool {
	if a.kind != KeyActor {
		return true // members are judged by their own role (mayChangeRole)
	}
	needed := everyScope
	switch role {
	case Viewer:
		needed = newScopes([]Scope{ScopeRead})
	case Support, Editor:
		needed = newScopes([]Scope{ScopeRead, ScopeWrite})
	}
	return a.mayGrant(needed, nil)
}

// Label says in a record who the actor is: "key:NAME", or by id where it has no name.
func (a Actor) Label() string { return a.label() }

// label says in a record who did something: "key:NAME", or by id where it has no name.
func (a Actor) label() string {
	switch {
	case a.kind != KeyActor:
		return a.name
	case a.name == "":
		return "key:" + a.id.String()
	}
	return "key:" + a.name
}
