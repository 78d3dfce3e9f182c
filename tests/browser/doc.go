// Package browser walks the dashboard as people do: a headless Chromium, the real service with the
// demo's data, and steps that name things as a screen reader would.
//
// A walk reads as a story:
//
//	func TestSupportFreesACustomer(t *testing.T) {
//		t.Parallel()
//		w := newTenant(t) // or demo(t), to look and change nothing
//		w.rule("requests", 10)
//		p := w.as(tenants.Support)
//		p.open("/subjects/user_42")
//		p.within("Actions").click("Reset")
//		p.fill("Reason", "called us")
//		p.click("Reset now")
//		p.sees("The counters of user_42 are empty.")
//		p.check()
//	}
//
// What there is:
//
//   - demo(t) is the tenant of the demo, which all tests share: only look. newTenant(t) is an empty
//     tenant of the test's own; its store arranges what a walk needs through the same methods as
//     the admin API, and ask makes a check with a key.
//   - as(role) is a page of somebody signed in with that role, operator() of the operator of the
//     service, nobody() of a visitor. Each has cookies of its own. Tests may run in parallel.
//   - open(path) wants 200, openFor(path, status) another status. click, fill, choose (an option of
//     a select), press (a key), sees, seesNot, at (the path), value. Each names a thing by its
//     accessible name, waits until it is there, and fails with a picture in .dev/test/browser where
//     it does not come. within(text) narrows all that to the smallest row, card, form or dialog
//     that holds the text.
//   - check() looks at the page as it is now: axe-core finds nothing in light and dark, nothing is
//     wider than the screen. phone() and desktop() set the screen.
//   - A test fails on its own where a page writes an error to the console, is refused something by
//     the content policy, asks another host for anything, or where a request fails. allow(status)
//     says which failure belongs to the story.
//
// Nothing sleeps: steps wait for what they name. A page that is new goes into the table of
// looks_test.go, which looks at every page in light, dark and on a phone, and makes the pictures of
// `make screenshots`; what one does on it is a walk in a file named after it.
package browser
