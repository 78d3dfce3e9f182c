data "weir_keys" "all" {
}
