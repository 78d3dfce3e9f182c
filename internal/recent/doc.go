// Package recent keeps the last decisions in memory, for people who look for the reason of a
// denial.
//
// A Log is told of every decision (check.Observer). It keeps the last 200 denials and 100 samples
// of allowed checks of each tenant, and who is near a limit, within a bound on memory. A denial
// that repeats within a second is counted on the first one.
//
// Nothing is stored elsewhere. A page that lists decisions asks all instances, over a Redis
// channel with encrypted messages, and merges what they answer within a moment. If Redis is
// unavailable, the page shows what this instance knows.
package recent
