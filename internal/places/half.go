package places

// OnHalf returns how many of most tasks that each use a processor run at the same time on an
// instance with so many processors: on at most half of them, because checks need the others, and at
// least one.
func OnHalf(processors, most int) int { return min(most, max(1, processors/2)) }
