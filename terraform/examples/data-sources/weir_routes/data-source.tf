data "weir_routes" "all" {
}
