package limit

// NeverMS stands in RetryAfterMS where no wait can help.
const NeverMS int64 = -1

// Verdict is what one counter says. Where the call was allowed and this counter charged, the
// numbers are those after the charge; otherwise those of the unchanged state.
type Verdict struct {
	Allowed      bool  // this rule alone would admit
	CostExceeds  bool  // the cost is greater than the quota: never to be admitted
	Penalized    bool  // a penalty (Numbers.PenaltyMS) runs, or is started by this denial; a peek is Allowed even so
	Remaining    int64 // max(0, floor(quota - used)); 0 while penalized
	RetryAfterMS int64 // 0 if Allowed; else the smallest wait, >= 1, until the same cost is admitted; NeverMS
	ResetMS      int64 // instant at which the full quota is available again; NowMS if it is now
	NextMS       int64 // instant at which at least one unit more than Remaining is there; NowMS if the full quota is
	DelayMS      int64 // leaky_bucket_queue: how long an admitted request must be held; 0 elsewhere and when denied
	Degraded     bool  // the rule's OnUnavailable answered, because the counter store could not
	Uncounted    bool  // degraded and answered without counting (allow, deny): Remaining, ResetMS and NextMS are void
}
