import assert from "node:assert/strict";
import { test } from "node:test";
import { allowed, denied, Fake } from "@weir-dev/client/testing";

test("the second order within a minute is denied", async () => {
  const limiter = Fake.script(allowed(), denied(3000));
  assert.equal((await limiter.check({ subject: "user_42" })).allowed, true);
  assert.equal((await limiter.check({ subject: "user_42" })).retryAfterMs, 3000);
  assert.equal(limiter.asked.length, 2);
});
