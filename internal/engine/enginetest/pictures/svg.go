package main

import (
	"fmt"
	"strings"

	"weir/internal/limit"
)

// Positions in pixels. They are the same in all pictures, so that pictures can be compared.
const (
	width, height     = 760, 362
	left, right       = 64, 744
	upperTop, upperUp = 64, 11.0  // the upper chart's top, and pixels for one request
	upperBase         = 174       // 10 requests high
	lowerTop, lowerUp = 216, 5.0  // the lower chart, pixels for one request
	lowerBase         = 216 + 100 // 20 requests high
	binMS             = 500
)

const style = `
.card{fill:#fff;stroke:#d0d7de}
.ink{fill:#1f2328}
.soft{fill:#59636e}
.grid{stroke:#d1d9e0;stroke-width:1}
.axis{stroke:#59636e;stroke-width:1}
.asked{fill:#c8d1da}
.admitted{fill:#0969da}
.go{fill:#bc4c00}
.line{fill:none;stroke:#0969da;stroke-width:2}
.goline{fill:none;stroke:#bc4c00;stroke-width:2}
.limit{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:6 4}
.limittext{fill:#cf222e}
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
.title{font-size:16px;font-weight:600}
@media (prefers-color-scheme:dark){
.card{fill:#0d1117;stroke:#3d444d}
.ink{fill:#f0f6fc}
.soft{fill:#9198a1}
.grid{stroke:#262c36}
.axis{stroke:#9198a1}
.asked{fill:#3d444d}
.admitted{fill:#4493f8}
.go{fill:#f0883e}
.line{stroke:#4493f8}
.goline{stroke:#f0883e}
.limit{stroke:#ff7b72}
.limittext{fill:#ff7b72}
}
`

type picture struct{ strings.Builder }

func (p *picture) put(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *picture) text(x, y float64, class, anchor, text string) {
	p.put(`<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`, x, y, class, anchor, text)
}

func (p *picture) rect(class string, x, y, w, h float64) {
	p.put(`<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, class, x, y, w, h)
}

func (p *picture) lineTo(class string, x1, y1, x2, y2 float64) {
	p.put(`<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`, class, x1, y1, x2, y2)
}

func x(ms int64) float64 { return left + float64(ms)*(right-left)/spanMS }

// draw returns the picture of an algorithm.
func draw(a limit.Algorithm) []byte {
	all := decide(a)
	queue := a == limit.LeakyBucketQueue
	admitted, most := 0, mostInWindow(all, queue)
	for _, r := range all {
		if r.allowed {
			admitted++
		}
	}
	p := new(picture)
	p.put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`, width, height, width, height)
	p.put(`<title>%s: what it admits of two bursts</title>`, a)
	verb := "admits"
	if queue {
		verb = "lets go"
	}
	p.put(`<desc>Of %d requests the rule of 10 in 10 seconds admits %d in half a minute, and %s at most %d within any 10 seconds.</desc>`,
		len(all), admitted, verb, most)
	p.put(`<style>%s</style>`, style)
	p.put(`<rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="8"/>`, width-1, height-1)
	p.text(16, 26, "ink title", "start", a.String())
	p.legend(queue)
	p.upper(all, queue)
	p.lower(all, queue, most)
	p.put(`</svg>`)
	return []byte(p.String())
}

func (p *picture) legend(queue bool) {
	at := 500.0
	if queue {
		at -= 76
	}
	item := func(class, text string, wide float64) {
		p.rect(class, at, 16, 11, 11)
		p.text(at+16, 26, "soft", "start", text)
		at += wide
	}
	item("asked", "asked, denied", 112)
	item("admitted", "admitted", 84)
	if queue {
		item("go", "let go", 64)
	}
}

// upper draws how many requests there were, and how many were allowed, in each half second.
func (p *picture) upper(all []request, queue bool) {
	p.text(16, 52, "soft", "start", "requests in half a second")
	for n := 0; n <= 10; n += 5 {
		y := upperBase - float64(n)*upperUp
		p.lineTo("grid", left, y, right, y)
		p.text(left-8, y+4, "soft", "end", fmt.Sprint(n))
	}
	p.windows(upperTop, upperBase)
	var asked, admitted [spanMS / binMS]int
	for _, r := range all {
		asked[r.at/binMS]++
		if r.allowed {
			admitted[r.at/binMS]++
		}
	}
	wide := x(binMS) - x(0) - 2
	for i := range asked {
		from := x(int64(i)*binMS) + 1
		if high := float64(asked[i]) * upperUp; high > 0 {
			p.rect("asked", from, upperBase-high, wide, high)
		}
		if high := float64(admitted[i]) * upperUp; high > 0 {
			p.rect("admitted", from, upperBase-high, wide, high)
		}
	}
	p.lineTo("axis", left, upperBase, right, upperBase)
	if !queue {
		return
	}
	for _, r := range all {
		if r.allowed && r.start < spanMS {
			p.put(`<circle class="go" cx="%.1f" cy="%d" r="3"/>`, x(r.start), upperBase+9)
		}
	}
}

// lower draws how many requests were allowed in the last ten seconds, at each instant.
func (p *picture) lower(all []request, queue bool, most int) {
	what, class := "admitted", "line"
	if queue {
		what, class = "let go", "goline"
	}
	p.text(16, lowerTop-12, "soft", "start", fmt.Sprintf("%s within the last 10 seconds; at most %d here", what, most))
	for n := 0; n <= 20; n += 10 {
		y := lowerBase - float64(n)*lowerUp
		p.lineTo("grid", left, y, right, y)
		p.text(left-8, y+4, "soft", "end", fmt.Sprint(n))
	}
	p.windows(lowerTop, lowerBase)
	var path strings.Builder
	fmt.Fprintf(&path, "M%.1f %d", x(0), lowerBase)
	before := 0
	for at := int64(0); at <= spanMS; at += 10 {
		now := inWindow(all, at, queue)
		if now != before || at == spanMS {
			fmt.Fprintf(&path, "H%.1fV%.1f", x(at), lowerBase-float64(now)*lowerUp)
			before = now
		}
	}
	p.put(`<path class="%s" d="%s"/>`, class, path.String())
	y := lowerBase - lim*lowerUp
	p.lineTo("limit", left, y, right, y)
	p.text(left+6, y-5, "limittext", "start", "limit 10 in 10 s")
	p.lineTo("axis", left, lowerBase, right, lowerBase)
	for s := int64(0); s <= spanMS/1000; s += 5 {
		p.text(x(1000*s), lowerBase+17, "soft", "middle", fmt.Sprint(s))
	}
	p.text((left+right)/2, lowerBase+35, "soft", "middle", "seconds")
}

// windows draws where the windows aligned to the clock end.
func (p *picture) windows(top, base float64) {
	for at := int64(windowMS); at <= spanMS; at += windowMS {
		p.lineTo("grid", x(at), top, x(at), base)
	}
}

func inWindow(all []request, at int64, queue bool) (count int) {
	for _, r := range all {
		when := r.at
		if queue {
			when = r.start
		}
		if r.allowed && when <= at && when > at-windowMS {
			count++
		}
	}
	return count
}

func mostInWindow(all []request, queue bool) (most int) {
	for at := int64(0); at <= spanMS; at += 10 {
		most = max(most, inWindow(all, at, queue))
	}
	return most
}
