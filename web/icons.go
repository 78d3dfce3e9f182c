package web

import (
	"path"
	"strings"
	"sync"
)

// icons are the names of the Lucide icons in use. vendor.sh reads this list: one name a line.
var icons = []string{
	"activity",
	"arrow-down-right",
	"arrow-left-right",
	"arrow-up-right",
	"ban",
	"building-2",
	"calendar",
	"chart-column",
	"check",
	"chevron-down",
	"chevron-right",
	"chevrons-up-down",
	"circle-alert",
	"circle-check",
	"circle-play",
	"copy",
	"download",
	"ellipsis",
	"eye",
	"flask-conical",
	"gauge",
	"history",
	"info",
	"key-round",
	"layers",
	"layout-dashboard",
	"list-filter",
	"log-out",
	"menu",
	"monitor",
	"moon",
	"plus",
	"rotate-ccw",
	"route",
	"scroll-text",
	"search",
	"server",
	"settings",
	"shield-check",
	"square-pen",
	"sun",
	"trash-2",
	"trending-up",
	"triangle-alert",
	"undo-2",
	"user",
	"user-plus",
	"users",
	"x",
}

// Icons returns an SVG sprite with one <symbol> for each icon in use. A page includes it once and
// draws an icon with <use href="#i-NAME">.
var Icons = sync.OnceValue(func() string {
	var b strings.Builder
	b.WriteString(`<svg width="0" height="0" class="sprite" aria-hidden="true">`)
	for _, name := range icons {
		text, err := files.ReadFile(path.Join("static/vendor/lucide-static/icons", name+".svg"))
		if err != nil {
			panic("web: no icon " + name)
		}
		_, drawing, _ := strings.Cut(string(text), "<svg")
		_, drawing, _ = strings.Cut(drawing, ">")
		drawing, _, _ = strings.Cut(drawing, "</svg>")
		b.WriteString(`<symbol id="i-` + name + `" viewBox="0 0 24 24">` + strings.Join(strings.Fields(drawing), " ") + `</symbol>`)
	}
	b.WriteString("</svg>")
	return b.String()
})
