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

// The roles of what can be clicked, and of what can be filled in. A summary has one that Chromium
// made up.
var (
	clickable = []string{
		"button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemradio", "option",
		"DisclosureTriangle", "combobox", "treeitem", "gridcell",
	}
	fillable   = []string{"textbox", "searchbox", "spinbutton", "combobox", "Date", "DateTime", "InputTime", "TextField"}
	selectable = []string{"combobox", "listbox", "MenuListPopup"}
)

// scopes are the parts of a page that within looks through.
const scopes = "tr, li, dialog, form, fieldset, article, section, details, nav, header, aside, .card"

// within narrows the steps that follow on the result to the smallest part of the page that holds
// the text.
func (p *page) within(text string) *page {
	part := *p
	part.scope = text
	return &part
}

// root is a JavaScript expression of the part of the page that steps look at, or null.
func (p *page) root() string {
	if p.scope == "" {
		return "document.documentElement"
	}
	return `[...document.querySelectorAll(` + quote(scopes) + `)]
		.filter(e => e.checkVisibility() && e.innerText.replace(/\s+/g, " ").includes(` + quote(p.scope) + `))
		.reduce((best, e) => !best || best.contains(e) || e.innerText.length < best.innerText.length ? e : best, null)`
}

// text is a JavaScript expression of what can be read.
func (p *page) text() string {
	return `(e => e ? e.innerText.replace(/\s+/g, " ") : "")(` + p.root() + `)`
}

// sees waits until the page says the text. White space counts as one space.
func (p *page) sees(text string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p, p.text())
		if err == nil && !strings.Contains(got, text) {
			err = fmt.Errorf("the page does not say %q, but:\n%s", text, got)
		}
		return err
	})
	return p
}

// openUntil opens a path again and again until the page says the text: for what the server
// has not loaded yet.
func (p *page) openUntil(path, text string) *page {
	p.t.Helper()
	p.eventually(func() error {
		got, err := eval[string](p.open(path), p.text())
		if err == nil && !strings.Contains(got, text) {
			err = fmt.Errorf("%s does not say %q, but:\n%s", path, text, got)
		}
		return err
	})
	return p
}

// seesNot waits until the page does not say the text.
func (p *page) seesNot(text string) *page {
	p.t.Helper()
	p.settle()
	p.eventually(func() error {
		got, err := eval[string](p, p.text())
		if err == nil && strings.Contains(got, text) {
			err = fmt.Errorf("the page says %q:\n%s", text, got)
		}
		return err
	})
	return p
}

// at waits until the page's path, with its query, is this one.
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

// click clicks with the mouse on what has this name, and returns when what follows is there.
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

// has waits until something to click or fill in has this name.
func (p *page) has(name string) *page {
	p.t.Helper()
	p.eventually(func() error {
		_, err := p.find(name, append(clickable, fillable...))
		return err
	})
	return p
}

// hasNot requires that nothing to click or fill in has this name, now that the page is at rest.
func (p *page) hasNot(name string) *page {
	p.t.Helper()
	p.settle()
	found, err := p.named(name, append(clickable, fillable...))
	p.must(err, name)
	require.Empty(p.t, found, "%q should not be there", name)
	return p
}

// fill replaces what stands in the field of this name, by typing.
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

// choose chooses an option, by its text, of the select of this name.
func (p *page) choose(name, option string) *page {
	p.t.Helper()
	p.eventually(func() error {
		object, err := p.find(name, selectable)
		if err != nil {
			return err
		}
		rest, err := callOn[string](p, object, `function(text) {
			const option = [...this.options].find(o => o.text.trim() === text);
			if (!option) return [...this.options].map(o => o.text.trim()).join(", ");
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

// value is what stands in the field of this name; of a box to tick, "true" or "false".
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

// press presses a key, or types a text, where the focus is. Keys are those of package kb, such as
// kb.Enter.
func (p *page) press(keys string, modifiers ...chromedp.Modifier) *page {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	p.must(chromedp.Do(ctx, chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...))), "press a key")
	p.settle()
	return p
}

// find returns the one thing of these roles that has this name and can be seen. Where several have
// it, those in the page's main part come first.
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
		return "", errors.Join(err, fmt.Errorf("nothing to use is called %q%s; there is: %s", name, p.where(), p.names(all)))
	}
	return "", fmt.Errorf("%d things are called %q%s: say within which part", len(seen), name, p.where())
}

func (p *page) where() string {
	if p.scope == "" {
		return ""
	}
	return fmt.Sprintf(" within %q", p.scope)
}

// reachable is root, without what an open drawer covers.
func (p *page) reachable() string {
	if p.scope != "" {
		return p.root()
	}
	return `document.querySelector("[data-drawer][open] > .sheet") ?? document.documentElement`
}

// named returns what has this accessible name, or any where it is "", and one of the roles.
func (p *page) named(name string, roles []string) ([]runtime.RemoteObjectID, error) {
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	root, err := chromedp.Call(ctx, runtime.Evaluate, runtime.EvaluateParams{Expression: p.reachable()})
	if err != nil {
		return nil, err
	}
	if root.Result == nil || root.Result.ObjectID == "" {
		return nil, fmt.Errorf("no part of the page holds %q", p.scope)
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

// names describes elements, for the message of a failed test.
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

// clickOn clicks on the middle of what can be seen of an element, like somebody with a mouse: what
// lies over it would get the click, and that is an error.
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
		return {X, Y, Covered: e.disabled ? "it is disabled" : ours ? "" : "covered by " + (top ? top.outerHTML.slice(0, 120) : "nothing: out of sight")} }`)
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
