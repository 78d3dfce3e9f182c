package simulate

import "time"

// The rules and numbers of Weir that the model follows. TestConstants compares them with the source
// code of package engine, engine/redis and limit.
const (
	maxBatch      = 128 // calls of a pipeline (redis.Options.MaxBatch)
	maxPipelines  = 2   // in flight to a node (redis.Options.Pipelines)
	maxBatchWork  = 256
	fairQuantum   = 8
	clusterGather = 16
	maxPatience   = 4
	lateLook      = 5 * time.Millisecond
	awakeTick     = 5 * time.Millisecond

	breakerInARow     = 5
	breakerTimedOut   = 150 * time.Millisecond
	breakerWindow     = time.Second
	breakerMinCalls   = 20
	breakerGoodProbes = 3
	breakerRamp       = 250 * time.Millisecond
	probeFirst        = 20 * time.Millisecond
	probeNext         = 10 * time.Millisecond
	probeMost         = 100 * time.Millisecond

	denialMS = 100
	graceMS  = 50

	leaseEvery   = 50 * time.Millisecond
	leaseBackoff = 50 * time.Millisecond
	leaseLow     = 4
	leaseBusy    = 4
	rateTickMS   = 64
	leaseHold    = 250 * time.Millisecond
	leaseShare   = 4
	leaseLeast   = 2

	// redisTimeout is the default of WEIR_REDIS_TIMEOUT.
	redisTimeout = 50 * time.Millisecond
)
