// Package check decides checks in three steps:
//
//   - Resolve: policy.go finds the rules that match the resource. For each rule it takes the
//     subject's override, or else the limit of the subject's plan, or else the rule's own limit.
//     key.go names the counters.
//   - Evaluate: the engine decides one call with all counters (package engine).
//   - Conclude: decision.go finds the deciding rule. A check is allowed only if every enforcing
//     rule allows it.
//
// checker.go holds these three steps. policies.go keeps the compiled policies of tenants in memory,
// subjects.go the registered subjects of one tenant. quota.go limits the tenants themselves, by the
// rules of the platform tenant. simulate.go decides on a virtual clock; inspect.go shows the live
// limits of a subject and resets them.
//
// An example: a check of cost 1 by "ada" for "orders:create". The policy has two rules that match:
// "burst", 10 a second for each subject, and "monthly", 10,000 a month. Ada's plan "pro" gives
// "monthly" 50,000, and she has an override of 20 for "burst". The call has two counters, with the
// numbers 20 a second and 50,000 a month. The engine answers 3 and 49,000 remaining. Both enforce
// and allow, so the check is allowed. The deciding rule is the one with the smallest share
// remaining: "burst", with 3 of 20.
//
// Everything here is in memory. A check does not query Postgres and takes no lock that all requests
// share.
package check
