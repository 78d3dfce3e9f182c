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
// A call has one of three distinct outcomes:
//
//   - A decision of the server: err is nil and Decision.NoDecision is nil.
//   - No decision, because the server is unavailable, slow or sends an invalid response: err is
//     nil, the option [WithOnFailure] supplies the answer, and Decision.NoDecision has the cause.
//   - Misuse, a mistake of the caller: err is a [*MisuseError] that names the field and the fix.
//     The Decision is the zero value, which denies.
//
// If the caller cancels the context, the call returns the context's error. If the context has a
// deadline that is earlier than the client's timeout, its end is no decision, so the fallback
// answers. Where a customer chooses the deadline, as in gRPC, check ctx.Err() before you proceed. A
// [Guard] does.
//
// A [Client] is safe for concurrent use. Create one for each server and key, and keep it.
package weir
