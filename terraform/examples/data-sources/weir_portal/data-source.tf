data "weir_portal" "this" {
}
