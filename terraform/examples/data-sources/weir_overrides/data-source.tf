data "weir_overrides" "api" {
  rule   = "api"
  active = "true"
}
