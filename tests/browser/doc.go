// Package browser tests the dashboard as people use it: a headless Chromium, the real service with
// the demo's data, and steps that name elements as a screen reader would.
//
// For example:
//
//	func TestSupportResetsLimits(t *testing.T) {
//		t.Parallel()
//		w := newTenant(t) // or demo(t), to change nothing
//		w.rule("requests", 10)
//		p := w.as(tenants.Support)
//		p.open("/subjects/user_42")
//		p.within("Actions").click("Reset")
//		p.fill("Reason", "called us")
//		p.click("Reset 1 limit")
//		p.sees("user_42 reset: Requests")
//		p.check()
//	}
//
// Functions:
//
//   - demo(t) is the tenant of the demo, which all tests share and must not change. newTenant(t) is
//     an empty tenant of the test. Its store prepares data with the same methods as the admin API,
//     and ask sends a check with a key.
//   - as(role) returns a page of a person who is signed in with that role, operator() of the
//     operator of the service, visitor() of a visitor. Each has its own cookies. Tests may run in
//     parallel.
//   - open(path) expects the status 200, openFor(path, status) another one. The steps are click,
//     fill, choose (an option of a select), press (a key), sees, seesNot, at (the path) and value.
//     Each names an element by its accessible name, waits until it exists, and otherwise fails with a
//     screenshot in .dev/test/browser. within(text) restricts the steps to the smallest row, card,
//     form or dialog that contains the text.
//   - check() checks the page in its current state: axe-core finds no violation in light and, on a
//     desktop, in dark, and nothing is wider than the screen. phone() and desktop() set the size of
//     the screen.
//   - A test fails if a page logs an error to the console, violates the content security policy, or
//     requests another host, or if a request fails. allow(status) permits an expected failure.
//
// Nothing sleeps: steps wait for what they name. A new page belongs in the table of looks_test.go,
// whose test checks every page in light, in dark and on a phone, and takes the pictures of `make
// screenshots`. The actions on a page are tested in a file named after it.
package browser
