data "weir_member" "ada" {
  id = data.weir_members.all.items[0].id
}
