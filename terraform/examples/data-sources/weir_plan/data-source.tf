data "weir_plan" "pro" {
  slug = "pro"
}
