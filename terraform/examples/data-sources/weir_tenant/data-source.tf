data "weir_tenant" "this" {
}
