data "weir_plan_limit" "pro_api" {
  plan = "pro"
  rule = "api"
}
