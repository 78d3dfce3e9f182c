data "weir_plan_versions" "pro" {
  plan = "pro"
}
