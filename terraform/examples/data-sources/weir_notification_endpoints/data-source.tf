data "weir_notification_endpoints" "all" {
}
