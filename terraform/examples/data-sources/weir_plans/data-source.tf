data "weir_plans" "all" {
}
