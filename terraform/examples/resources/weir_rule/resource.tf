resource "weir_rule" "api" {
  slug   = "api"
  limit  = 100
  window = "1m"
}

resource "weir_rule" "exports" {
  slug      = "exports"
  name      = "Exports"
  resource  = "exports:*"
  algorithm = "token_bucket"
  limit     = 10
  window    = "1h"
  burst     = 20
}
