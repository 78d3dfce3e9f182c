package main

import (
	"net/http"
	"testing"
	"time"

	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// A customer with 100 seats, who gets another plan whose on_change is scale, keeps the used share
// of the limits that the customer has, in Redis and in memory.
func TestScaleWithMultiplier(t *testing.T) {
	t.Parallel()
	for name, counters := range map[string]func(*testing.T) engine.Engine{
		"memory": func(*testing.T) engine.Engine { return nil },
		"redis": func(t *testing.T) engine.Engine {
			return redisengine.New(testenv.RedisClient(t), redisengine.Options{Deadline: testenv.RedisTimeout})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The window begins with the first check, by whichever clock, and outlives the test.
			s := newStoryWith(t, tenants.OnChangeScale, time.Now(),
				`{"resource":"api","algorithm":"fixed_window_first_hit","limit":1,"window":"1d"}`, counters(t))
			scaled := func(remaining int) map[string]int { return map[string]int{tenants.OnChangeScale: remaining} }
			s.call(http.MethodPut, "/v1/subjects/ada", `{"multiplier":100}`, 201)
			s.becomes(400, scaled(400), "100 times 4 of the default plan")
			s.use(320, 200)

			s.call(http.MethodPatch, "/v1/subjects/ada", `{"plan":"pro"}`, 200)
			s.becomes(1_000, scaled(200), "320 of 400 were used")
			s.call(http.MethodPatch, "/v1/subjects/ada", `{"plan":"max"}`, 200)
			s.becomes(2_500, scaled(500), "800 of 1000 were used")
			s.call(http.MethodPatch, "/v1/subjects/ada", `{"plan":null}`, 200)
			s.becomes(400, scaled(80), "2000 of 2500 were used")

			s.call(http.MethodPatch, "/v1/subjects/ada", `{"plan":"pro","multiplier":30}`, 200)
			s.becomes(300, scaled(60), "320 of 400 were used, and both have changed")
			s.call(http.MethodPatch, "/v1/subjects/ada", `{"multiplier":50}`, 200)
			s.becomes(500, scaled(260), "a multiplier alone keeps the usage of 240")
			s.stays(500, scaled(260), "no change of counters follows")
			s.call(http.MethodDelete, "/v1/subjects/ada", "", 204)
			s.becomes(4, scaled(2), "240 of 500 were used, which is at most 2 of 4")
		})
	}
}
