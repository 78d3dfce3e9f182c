package dashboard

// Signup says who may make a tenant of their own.
type Signup string

// Who may sign up.
const (
	SignupOpen   Signup = "open"   // everybody
	SignupInvite Signup = "invite" // whom the operator has sent a link
	SignupClosed Signup = "closed" // nobody
)

// Signups lists what Signup may be.
var Signups = []Signup{SignupOpen, SignupInvite, SignupClosed}
