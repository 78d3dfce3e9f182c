data "weir_rule" "api" {
  slug = "api"
}
