data "weir_members" "all" {
}
