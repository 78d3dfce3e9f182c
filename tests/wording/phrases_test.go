package wording

// A phrase is forbidden, in lower case, with single blanks.
type phrase struct{ text, say string }

// phrases are what the glossary and plain English replace.
var phrases = []phrase{
	// leases
	{"taken ahead", "prefetched"},
	{"takes ahead", "prefetches"},
	{"take ahead", "prefetch"},
	{"taking ahead", "prefetching"},
	{"units ahead", "prefetched units"},
	{"given out", "granted"},
	{"gives out", "grants"},
	{"give out", "grant"},
	{"giving out", "granting"},
	{"given back", "returned"},
	{"gives back", "returns"},
	{"give back", "return"},
	{"put back", "returned, restored"},
	{"where units are", "consistency"},

	// outages
	{"is away", "is unavailable"},
	{"are away", "are unavailable"},
	{"was away", "was unavailable"},
	{"were away", "were unavailable"},
	{"be away", "be unavailable"},
	{"been away", "been unavailable"},
	{"goes away", "becomes unavailable"},
	{"while the counters", "if Redis is unavailable"},
	{"without some counter", "in degraded mode"},
	{"no reply of the script", "unexpected script reply from Redis"},

	// counters and quotas
	{"anew", "again, from zero"},
	{"whole again", "fully available"},
	{"is whole", "is full, is intact"},
	{"be whole", "be full, be intact"},
	{"being whole", "being full, being intact"},
	{"that it is whole", "integrity"},
	{"half as much again", "150 % of"},
	{"as much again", "twice as much"},
	{"for so long", "for this long"},
	{"one more like it", "1 more"},

	// memory
	{"put out", "evicted"},
	{"puts out", "evicts"},
	{"the longest ago", "least recently used"},
	{"takes them apart", "unpacks them"},
	{"taken apart", "parsed, split"},
	{"takes apart", "parses, splits"},
	{"take apart", "parse, split"},
	{"puts together", "assembles"},
	{"work out", "compute"},
	{"works out", "computes"},
	{"worked out", "computed"},
	{"tell sizes", "compute sizes"},

	// errors and objects
	{"is there twice", "duplicate"},
	{"are there twice", "are duplicates"},
	{"is there once", "may appear only once"},
	{"are there once", "may appear only once"},
	{"there is no such thing", "not found"},
	{"where there is none", "if there is none"},
	{"where there is one", "if there is one"},
	{"that is there", "that exists, existing"},
	{"that are there", "that exist, existing"},
	{"that never was", "that never existed"},
	{"it never was", "it never existed"},
	{"asks no checks", "cannot run checks"},
	{"that nobody made", "simulated"},
	{"nothing was saved yet", "nothing saved"},
	{"like any other", "as usual"},
	{"mend", "fix, correct"},
	{"mends", "fixes, corrects"},
	{"mended", "fixed, corrected"},
	{"in vain", "without effect"},

	// the dashboard
	{"is all well", "is everything healthy?"},
	{"the one to take in doubt", "recommended"},
	{"in doubt", "recommended, unknown"},
	{"the time before", "previous period"},
	{"search or do", "search or jump to"},
	{"empty the form", "clear"},
	{"for those who", "for people who"},
	{"the same as a table", "view as table"},
	{"the rule holds already", "the rule is live"},
	{"while one types", "while you type"},

	// changes
	{"hears of", "is notified of"},
	{"hear of", "be notified of, learn of"},
	{"heard of", "notified of, known"},
	{"next breath", "immediately after"},
	{"lately", "recently"},
	{"goes on", "continues"},
	{"go on", "continue"},
	{"went on", "continued"},
	{"going on", "continuing"},
	{"the road of", "the path of"},

	// people and style
	{"who upgrades", "customers who upgrade"},
	{"whoever", "the person who, a client that"},
	{"strangers", "unknown clients"},
	{"stranger", "unknown client"},
	{"tells apart", "distinguishes"},
	{"tell apart", "distinguish"},
	{"told apart", "distinguished"},
	{"all the same", "still"},
	{"but for", "except"},
	{"lest", "so that ... not"},
	{"the house", "the project"},
	{"became of", "outcome of, state of"},
	{"becomes of", "outcome of, state of"},
	{"holds out", "prevents"},
	{"at hand", "available"},
	{"gives way", "yields"},
	{"give way", "yield"},
	{"hands over", "passes"},
	{"hands out", "distributes"},
	{"slip of the pen", "typing error"},
	{"as it came", "unchanged"},
	{"how things stand", "the state"},
	{"nobody waits", "no caller waits"},
}

// identifiers are names that were replaced.
var identifiers = map[string]string{
	"Room": "Scratch", "heat": "rate", "heats": "rates", "rooms": "remaining", "calm": "backoffUntil",
	"flight": "pipeline", "flights": "pipelines", "room": "remaining", "whole": "full",
}

// textPhrases are forbidden in the documentation and on the pages, apart from code: words that the
// glossary replaces, and that code uses in another sense.
var textPhrases = []phrase{
	{"admit", "allow"},
	{"admits", "allows"},
	{"admitted", "allowed"},
	{"admitting", "allowing"},
	{"room", "remaining units, space"},
}
