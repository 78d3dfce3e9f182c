data "weir_key" "first" {
  id = data.weir_keys.all.items[0].id
}
