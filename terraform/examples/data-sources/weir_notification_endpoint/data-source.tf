data "weir_notification_endpoint" "operations" {
  id = data.weir_notification_endpoints.all.items[0].id
}
