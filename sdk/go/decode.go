package weir

// A scanner reads the usual answers of a server: objects of plain ASCII strings, whole numbers,
// booleans and nulls. If it finds anything else, it gives up, and encoding/json reads the answer
// instead. It must never accept an answer that encoding/json refuses, nor return another result. It
// saves more than half of the client's time.
//
// Strings that it returns share memory with s.
type scanner struct {
	s    string
	at   int
	lost bool // it has given up
}

// scanDecision reads a decision. It is false if encoding/json must read it.
func scanDecision(s string, w *wireDecision) bool {
	r := scanner{s: s}
	r.decision(w)
	r.space()
	return !r.lost && r.at == len(s)
}

// scanBatch reads the answer to a batch. It is false if encoding/json must read it.
func scanBatch(s string, results []wireDecision) ([]wireDecision, bool) {
	r := scanner{s: s}
	r.object(func(name string) {
		if name != "results" || len(results) > 0 {
			r.lost = true
			return
		}
		r.list(func() {
			results = append(results, wireDecision{})
			r.decision(&results[len(results)-1])
		})
	})
	r.space()
	return results, !r.lost && r.at == len(s)
}

func (r *scanner) decision(w *wireDecision) {
	r.object(func(name string) {
		switch name {
		case "allowed":
			allowed := r.boolean()
			w.Allowed = &allowed
		case "subject":
			r.text(&w.Subject)
		case "resource":
			r.text(&w.Resource)
		case "cost":
			if n := r.number(); n.Known {
				w.Cost = n.Value
			}
		case "plan":
			r.text(&w.Plan)
		case "rule":
			r.text(&w.Rule)
		case "limit":
			w.Limit = r.number()
		case "remaining":
			w.Remaining = r.number()
		case "retry_after_ms":
			w.RetryAfterMS = r.number()
		case "reset_after_ms":
			w.ResetAfterMS = r.number()
		case "delay_ms":
			w.DelayMS = r.number()
		case "rules":
			r.lost = r.lost || w.Rules != nil
			w.Rules = make([]RuleDecision, 0, 2)
			r.list(func() {
				w.Rules = append(w.Rules, RuleDecision{})
				r.rule(&w.Rules[len(w.Rules)-1])
			})
		case "degraded":
			w.Degraded = r.boolean()
		case "warning":
			w.Warning = r.boolean()
		case "overage":
			w.Overage = r.boolean()
		case "replayed":
			w.Replayed = r.boolean()
		case "error":
			r.lost = r.lost || w.Error != nil
			w.Error = &Denial{}
			r.denial(w.Error)
		default: // skipped among others
			r.other(name)
		}
	})
}

func (r *scanner) rule(d *RuleDecision) {
	r.object(func(name string) {
		switch name {
		case "rule":
			r.text(&d.Rule)
		case "algorithm":
			r.text(&d.Algorithm)
		case "mode":
			r.text(&d.Mode)
		case "allowed":
			d.Allowed = r.boolean()
		case "source":
			r.text(&d.Source)
		case "unlimited":
			d.Unlimited = r.boolean()
		case "limit":
			d.Limit = r.number()
		case "burst":
			d.Burst = r.number()
		case "window_ms":
			d.WindowMS = r.number()
		case "remaining":
			d.Remaining = r.number()
		case "retry_after_ms":
			d.RetryAfterMS = r.number()
		case "reset_after_ms":
			d.ResetAfterMS = r.number()
		case "delay_ms":
			d.DelayMS = r.number()
		case "penalized":
			d.Penalized = r.boolean()
		case "degraded":
			d.Degraded = r.boolean()
		case "warning":
			d.Warning = r.boolean()
		case "overage":
			d.Overage = r.boolean()
		case "overage_units":
			if n := r.number(); n.Known {
				d.OverageUnits = n.Value
			}
		case "credits_spent":
			if n := r.number(); n.Known {
				d.CreditsSpent = n.Value
			}
		case "credits_remaining":
			d.CreditsRemaining = r.number()
		default:
			r.other(name)
		}
	})
}

func (r *scanner) denial(d *Denial) {
	r.object(func(name string) {
		switch name {
		case "code":
			r.text(&d.Code)
		case "message":
			r.text(&d.Message)
		case "retry_after":
			d.RetryAfter = r.number()
		default:
			r.other(name)
		}
	})
}

// other skips a field of a newer server, if its value is simple. encoding/json matches fields in
// any letter case, so other gives up on a name with a capital letter, and on a nested value.
func (r *scanner) other(name string) {
	if name == "skipped" {
		r.lost = true
	}
	for i := range len(name) {
		if name[i] >= 'A' && name[i] <= 'Z' {
			r.lost = true
		}
	}
	switch r.peek() {
	case '"':
		r.quoted()
	case 't', 'f':
		r.boolean()
	default:
		r.number()
	}
}

// object reads an object and calls field before each value. field must read the value.
func (r *scanner) object(field func(name string)) {
	r.expect('{')
	if r.peek() == '}' {
		r.at++
		return
	}
	for !r.lost {
		r.space()
		name := r.quoted()
		r.expect(':')
		r.space()
		if r.lost {
			return
		}
		field(name)
		if r.peek() != ',' {
			break
		}
		r.at++
	}
	r.expect('}')
}

func (r *scanner) list(entry func()) {
	r.expect('[')
	if r.peek() == ']' {
		r.at++
		return
	}
	for !r.lost {
		entry()
		if r.peek() != ',' {
			break
		}
		r.at++
	}
	r.expect(']')
}

func (r *scanner) space() {
	for r.at < len(r.s) {
		switch r.s[r.at] {
		case ' ', '\n', '\r', '\t':
			r.at++
		default:
			return
		}
	}
}

// peek returns the next byte that is not white space, or 0.
func (r *scanner) peek() byte {
	r.space()
	if r.at < len(r.s) {
		return r.s[r.at]
	}
	return 0
}

func (r *scanner) expect(c byte) {
	if r.peek() != c {
		r.lost = true
		return
	}
	r.at++
}

func (r *scanner) word(w string) bool {
	if len(r.s)-r.at >= len(w) && r.s[r.at:r.at+len(w)] == w {
		r.at += len(w)
		return true
	}
	return false
}

// text reads a string into a field. null leaves it unchanged, like encoding/json.
func (r *scanner) text(into *string) {
	if !r.word("null") {
		*into = r.quoted()
	}
}

func (r *scanner) quoted() string {
	if r.at >= len(r.s) || r.s[r.at] != '"' {
		r.lost = true
		return ""
	}
	from := r.at + 1
	for i := from; i < len(r.s); i++ {
		switch c := r.s[i]; {
		case c == '"':
			r.at = i + 1
			return r.s[from:i]
		case c == '\\' || c < ' ' || c >= 0x80:
			r.lost = true
			return ""
		}
	}
	r.lost = true
	return ""
}

func (r *scanner) boolean() bool {
	if r.word("true") {
		return true
	}
	if !r.word("false") {
		r.lost = true
	}
	return false
}

// number reads null, or a whole number with so few digits that it fits into an int64.
func (r *scanner) number() Number {
	if r.word("null") {
		return Number{}
	}
	from := r.at
	negative := r.at < len(r.s) && r.s[r.at] == '-'
	if negative {
		r.at++
	}
	digits := r.at
	var n int64
	for r.at < len(r.s) && r.s[r.at] >= '0' && r.s[r.at] <= '9' && r.at-digits < 18 {
		n = n*10 + int64(r.s[r.at]-'0')
		r.at++
	}
	length := r.at - digits
	if length == 0 || length > 1 && r.s[digits] == '0' || r.at < len(r.s) && continuesNumber(r.s[r.at]) {
		r.at, r.lost = from, true
		return Number{}
	}
	if negative {
		n = -n
	}
	return N(n)
}

func continuesNumber(c byte) bool {
	return c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E'
}
