package limit

// NeverMS is the value of RetryAfterMS if no wait helps.
const NeverMS int64 = -1

// Verdict is the result of one counter. If the call was allowed and this counter was charged, the
// numbers are those after the charge. Otherwise they are those of the unchanged state.
type Verdict struct {
	Allowed      bool  // this rule alone allows it
	CostExceeds  bool  // the cost is greater than the quota: it can never be allowed
	Penalized    bool  // a penalty (Numbers.PenaltyMS) runs, or begins with this denial; cost 0 is Allowed in any case
	Remaining    int64 // max(0, floor(quota - used)); 0 while penalized
	Overage      int64 // with Numbers.Overage: max(0, used - limit)
	RetryAfterMS int64 // 0 if Allowed; otherwise the shortest wait, >= 1, until the same cost is allowed, or NeverMS
	ResetMS      int64 // instant at which the full quota is available again; NowMS if it is now
	NextMS       int64 // instant at which at least one unit more than Remaining is available; NowMS if the full quota is
	DelayMS      int64 // leaky_bucket_queue: the delay of an allowed request; otherwise 0
	CreditsSpent int64 // with credits: units of the call that were taken from them
	Credits      int64 // with credits: units that are left
	PartQuota    int64 // degraded and counted in memory: this instance's part of the quota; otherwise 0
	Degraded     bool  // the rule's OnUnavailable answered, because the counter store is unavailable
	Unopened     bool  // with credits: a grant could not be spent, because nobody has said yet what was spent of it
	Uncounted    bool  // degraded and answered without counting (allow, deny): Remaining, ResetMS and NextMS are undefined
}
