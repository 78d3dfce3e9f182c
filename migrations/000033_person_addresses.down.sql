DROP TABLE person_addresses;
