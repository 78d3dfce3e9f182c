resource "weir_notification_endpoint" "operations" {
  url   = "https://operations.example.com/weir"
  types = ["quota.reached"]
}
