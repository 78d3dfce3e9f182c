package tenants

// Numbers of advisory locks. All users of a database share them, so each is used once; 7_305_417 is
// that of package tenantstest.
const (
	usageUpkeepLock  = 7_305_418 // of the server that maintains the usage
	meteringLock     = 7_305_419 // of writers of metered usage and of sealing
	meteringLookLock = 7_305_420 // of looking whether an hour can be sealed
	creditsLock      = 7_305_421 // of the server that sweeps credits
	purgeLock        = 7_305_422 // of the server that deletes what is old
	meterPushLock    = 7_305_423 // of the server that creates pushes
	deletedLock      = 7_305_424 // of the server that deletes rows of deleted tenants
	meteringNoteLock = 7_305_425 // of notes about writers of metered usage
)
