DROP TABLE agent_tickets;
DROP TABLE agent_output;
DROP TABLE agent_sessions;
DROP TABLE agent_features;
DROP TABLE customer_keys;
