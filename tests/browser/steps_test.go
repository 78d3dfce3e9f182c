package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// The roles of elements that can be clicked, and of those that can be filled in. Chromium has its
// own role for a summary.
var (
	clickable = []string{
		"button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemradio", "option",
		"DisclosureTriangle", "combobox", "treeitem", "gridcell",
	}
	fillable   = []string{"textbox", "searchbox", "spinbutton", "combobox", "Date", "DateTime", "InputTime", "TextField"}
	selectable = []string{"combobox", "listbox", "MenuListPopup"}
)

// scopes are the elements that within considers.
const scopes = "tr, li, dialog, form, fieldset, article, section, details, nav, header, aside, .card"

// within restricts the next steps on the result to the smallest part of the page that contains the
// text.
func (p *page) within(text string) *page {
	part := *p
	part.scope = text
	return &part
}

// root is a JavaScript expression for the part of the page that steps use, or null.
func (p *page) root() string {
	if p.scope == "" {
		return "document.documentElement"
	}
	return `[...document.querySelectorAll(` + quote(scopes) + `)]
		.filter(e => e.checkVisibility() && e.innerText.replace(/\s+/g, " ").includes(` + quote(p.scope) + `))
		.reduce((best, e) => !best || best.contains(e) || e.innerText.length < best.innerText.length ? e : best, null)`
}

// text is a JavaScript expression for the visible text.
func (p *page) text() string {
	return `(e => e ? e.innerText.replace(/\s+/g, " ") : "")(` + p.root() + `)`
}

// sees waits until the loaded page contains the text. White space counts as one space. Before a
// page is loaded, its scripts may not have run.
func (p *page) sees(text string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p, `document.readyState === "complete" ? `+p.text()+` : ""`)
		if err == nil && !contains(got, text) {
			err = fmt.Errorf("the page does not contain %q, but:\n%s", text, got)
		}
		return err
	})
	return p
}

// contains reports whether a page shows a text, in any case: styles begin some texts with a capital
// letter.
func contains(page, text string) bool {
	return strings.Contains(strings.ToLower(page), strings.ToLower(text))
}

// openUntil opens a path repeatedly until the page contains the text, for data that the server has
// not loaded yet.
func (p *page) openUntil(path, text string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p.open(path), p.text())
		if err == nil && !contains(got, text) {
			err = fmt.Errorf("%s does not contain %q, but:\n%s", path, text, got)
		}
		return err
	})
	return p
}

// mail returns a mail in the demo mailbox that contains the text. The server sends mails after its
// answer, so it waits for one.
func (p *page) mail(text string) *page {
	p.t.Helper()
	return p.openUntil("/dev/mail", text).within(text)
}

// seesNot waits until the page does not contain the text.
func (p *page) seesNot(text string) *page {
	p.t.Helper()
	p.settle()
	p.eventually(func() error {
		got, err := eval[string](p, p.text())
		if err == nil && contains(got, text) {
			err = fmt.Errorf("the page contains %q:\n%s", text, got)
		}
		return err
	})
	return p
}

// at waits until the page has this path and query.
func (p *page) at(path string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p, "location.pathname + location.search")
		if err == nil && got != path {
			err = fmt.Errorf("the page is at %s and not at %s", got, path)
		}
		return err
	})
	return p
}

// click clicks with the mouse on the element with this name, and waits until the page is idle.
func (p *page) click(name string) *page {
	p.t.Helper()
	p.eventually(func() error {
		object, err := p.find(name, clickable)
		if err != nil {
			return err
		}
		return p.clickOn(object)
	})
	p.settle()
	return p
}

// has waits for an element with this name that can be clicked or filled in.
func (p *page) has(name string) *page {
	p.t.Helper()
	p.eventually(func() error {
		_, err := p.find(name, append(clickable, fillable...))
		return err
	})
	return p
}

// hasNot requires that no element with this name can be clicked or filled in, once the page is
// idle.
func (p *page) hasNot(name string) *page {
	p.t.Helper()
	p.settle()
	found, err := p.named(name, append(clickable, fillable...))
	p.must(err, name)
	require.Empty(p.t, found, "%q should not exist", name)
	return p
}

// fill replaces the text of the field with this name, by typing.
func (p *page) fill(name, text string) *page {
	p.t.Helper()
	p.eventually(func() error {
		object, err := p.find(name, fillable)
		if err != nil {
			return err
		}
		_, err = callOn[bool](p, object, `function() { this.focus(); this.select ? this.select() : 0; return true }`)
		return err
	})
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if text == "" {
		p.must(chromedp.Do(ctx, chromedp.KeyEvent("\b")), name)
	} else {
		p.must(chromedp.Do(ctx, chromedp.KeyEvent(text)), name)
	}
	return p
}

// choose chooses an option, by its text, of the select or the field with suggestions with this
// name.
func (p *page) choose(name, option string) *page {
	p.t.Helper()
	p.eventually(func() error {
		object, err := p.find(name, selectable)
		if err != nil {
			return err
		}
		rest, err := callOn[string](p, object, `function(text) {
			const options = [...(this.options ?? document.getElementById(this.dataset.list ?? this.getAttribute("list")).options)];
			const option = options.find(o => (o.label || o.value).trim() === text || o.text.trim() === text);
			if (!option) return options.map(o => o.label).join(", ");
			this.value = option.value;
			this.dispatchEvent(new Event("input", {bubbles: true}));
			this.dispatchEvent(new Event("change", {bubbles: true}));
			return "" }`, option)
		if err == nil && rest != "" {
			err = fmt.Errorf("%q has no option %q, but %s", name, option, rest)
		}
		return err
	})
	p.settle()
	return p
}

// value returns the value of the field with this name; for a checkbox, "true" or "false".
func (p *page) value(name string) string {
	p.t.Helper()
	var value string
	p.eventually(func() error {
		object, err := p.find(name, append(fillable, "checkbox", "radio", "switch", "listbox"))
		if err != nil {
			return err
		}
		value, err = callOn[string](p, object, `function() {
			return this.type === "checkbox" || this.type === "radio" ? String(this.checked) : String(this.value) }`)
		return err
	})
	return value
}

// press presses a key, or types a text, at the focus. Keys are those of package kb, such as
// kb.Enter.
func (p *page) press(keys string, modifiers ...chromedp.Modifier) *page {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	p.must(chromedp.Do(ctx, chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...))), "press a key")
	p.settle()
	return p
}

// find returns the one visible element with one of these roles and this name. Elements in the main
// part of the page take precedence.
func (p *page) find(name string, roles []string) (runtime.RemoteObjectID, error) {
	found, err := p.named(name, roles)
	if err != nil {
		return "", err
	}
	var seen, main []runtime.RemoteObjectID
	for _, object := range found {
		where, err := callOn[string](p, object, `function() {
			const e = this.nodeType === 1 ? this : this.parentElement;
			return !e.checkVisibility({visibilityProperty: true}) && !(e.labels && [...e.labels].some(l => l.checkVisibility())) ? "" :
				e.closest("dialog[open], main") ? "main" : "frame" }`)
		if err != nil {
			return "", err
		}
		if where != "" {
			seen = append(seen, object)
		}
		if where == "main" {
			main = append(main, object)
		}
	}
	if len(main) > 0 {
		seen = main
	}
	switch len(seen) {
	case 1:
		return seen[0], nil
	case 0:
		all, err := p.named("", roles)
		return "", errors.Join(err, fmt.Errorf("no element is named %q%s; found: %s", name, p.where(), p.names(all)))
	}
	return "", fmt.Errorf("%d elements are named %q%s: use within", len(seen), name, p.where())
}

func (p *page) where() string {
	if p.scope == "" {
		return ""
	}
	return fmt.Sprintf(" within %q", p.scope)
}

// reachable is root without the elements that an open drawer covers.
func (p *page) reachable() string {
	if p.scope != "" {
		return p.root()
	}
	return `document.querySelector("[data-drawer][open] > .sheet") ?? document.documentElement`
}

// named returns the elements with one of the roles and this accessible name. "" stands for any
// name.
func (p *page) named(name string, roles []string) ([]runtime.RemoteObjectID, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	root, err := chromedp.Call(ctx, runtime.Evaluate, runtime.EvaluateParams{Expression: p.reachable()})
	if err != nil {
		return nil, err
	}
	if root.Result == nil || root.Result.ObjectID == "" {
		return nil, fmt.Errorf("no part of the page contains %q", p.scope)
	}
	tree, err := chromedp.Call(ctx, accessibility.QueryAXTree, accessibility.QueryAXTreeParams{ObjectID: root.Result.ObjectID, AccessibleName: name})
	if err != nil {
		return nil, err
	}
	var found []runtime.RemoteObjectID
	for _, node := range tree.Nodes {
		var role string
		if node.Role == nil || node.Ignored || json.Unmarshal(node.Role.Value, &role) != nil || !slices.Contains(roles, role) {
			continue
		}
		object, err := chromedp.Call(ctx, dom.ResolveNode, dom.ResolveNodeParams{BackendNodeID: node.BackendDOMNodeID})
		if err != nil {
			return nil, err
		}
		found = append(found, object.Object.ObjectID)
	}
	return found, nil
}

// names describes elements, for the message of a failure.
func (p *page) names(objects []runtime.RemoteObjectID) string {
	var names []string
	for _, object := range objects {
		name, err := callOn[string](p, object, `function() { return (this.getAttribute && this.getAttribute("aria-label") ||
			this.labels && this.labels[0] && this.labels[0].innerText || this.innerText || this.textContent || "").trim().replace(/\s+/g, " ") }`)
		if err == nil {
			names = append(names, fmt.Sprintf("%q", name))
		}
	}
	return strings.Join(names, ", ")
}

// clickOn clicks on the middle of the visible part of an element, as with a mouse. If another
// element covers it, that is an error.
func (p *page) clickOn(object runtime.RemoteObjectID) error {
	type spot struct {
		X, Y    float64
		Covered string
	}
	at, err := callOn[spot](p, object, `function() {
		const e = this.nodeType === 1 ? this : this.parentElement;
		const seen = e.checkVisibility() && e.getClientRects().length ? e : e.labels[0];
		seen.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
		const box = seen.getClientRects()[0];
		const X = box.x + box.width / 2, Y = box.y + box.height / 2;
		const top = document.elementFromPoint(X, Y);
		const ours = top && (seen.contains(top) || top.contains(seen) || e.labels && [...e.labels].some(l => l.contains(top)));
		return {X, Y, Covered: e.disabled ? "it is disabled" : ours ? "" : "covered by " + (top ? top.outerHTML.slice(0, 120) : "nothing: not visible")} }`)
	if err != nil {
		return err
	}
	if at.Covered != "" {
		return errors.New(at.Covered)
	}
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Do(ctx, chromedp.MouseClickXY(at.X, at.Y))
}

// callOn calls a JavaScript function with an element as this.
func callOn[T any](p *page, object runtime.RemoteObjectID, function string, args ...any) (T, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	return chromedp.Run(ctx, chromedp.CallFunctionOn[T](function, func(params *runtime.CallFunctionOnParams) {
		params.ObjectID = object
	}, args...))
}
