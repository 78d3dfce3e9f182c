// Package weir asks a Weir server whether a subject may do something now.
//
//	client, err := weir.New("https://weir.example.com", os.Getenv("WEIR_KEY"))
//	...
//	decision, err := client.Check(ctx, weir.Check{Subject: "user_42", Resource: "orders:create"})
//	if err != nil {
//		return err // the call itself is wrong, or the caller cancelled it
//	}
//	if !decision.Allowed {
//		return tooManyRequests(decision)
//	}
//
// A call ends in one of three outcomes that cannot be confused:
//
//   - A decision of the server: err is nil and Decision.NoDecision is nil.
//   - No decision, because the server is unavailable, slow or talks nonsense: err is nil, the option
//     [WithOnFailure] has answered instead, and Decision.NoDecision tells the cause.
//   - Misuse, a mistake of the caller: err is a [*MisuseError] that names field and fix. The Decision is then
//     the zero value, which denies.
//
// A call that its caller cancelled returns the context's error.
//
// A [Client] is safe for concurrent use. Create one for each server and key, and keep it.
package weir
