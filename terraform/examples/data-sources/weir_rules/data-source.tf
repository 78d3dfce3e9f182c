data "weir_rules" "shadow" {
  mode = "shadow"
}
