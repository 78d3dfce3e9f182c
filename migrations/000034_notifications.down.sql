DROP TABLE notification_deliveries;
DROP TABLE notifications;
DROP TABLE notification_endpoints;
