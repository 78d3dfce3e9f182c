// Package peers counts the instances of the service, and passes messages between them.
//
// Each instance publishes its name on a Redis channel every second and listens to the others. The
// number is used while Redis is unavailable: each instance then allows its share of a limit. With 3
// instances and a limit of 10 the shares are 4, 3 and 3. The highest number of the last ten minutes
// counts, so a failing Redis does not increase the shares. Names begin with a mark of the
// deployment: instances of another one that uses the same Redis do not count.
//
// A Broadcast carries signed messages through another channel. Example: instance A reads from
// Postgres that a key was revoked, and sends that. Instance B cannot reach Postgres, receives the
// message within milliseconds, and refuses the key.
package peers
